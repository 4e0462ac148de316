"""Small images of shapes and digits, and tones, drawn from a seed: media with known content."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from brimful.optional import optional
from brimful.typing import Float32Array

if TYPE_CHECKING:
    from PIL import Image

COLOURS = {
    "red": (208, 60, 52),
    "green": (58, 145, 77),
    "blue": (49, 96, 186),
    "yellow": (236, 190, 51),
    "purple": (130, 75, 160),
    "orange": (226, 124, 48),
}
"""RGB of each color."""

SHAPES = ("circle", "square", "triangle", "digit")
NOTES = {"C": 261.63, "D": 293.66, "E": 329.63, "F": 349.23, "G": 392.0, "A": 440.0, "B": 493.88}
"""Notes of the octave from middle C, in hertz."""

SAMPLING_RATE = 16_000
"""Samples of a tone in a second."""

_SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abfgcd")
"""Lit bars of each digit on a display of seven bars."""

_BARS = {
    "a": (0, 0, 1, 0.15),
    "b": (0.8, 0, 1, 0.5),
    "c": (0.8, 0.5, 1, 1),
    "d": (0, 0.85, 1, 1),
    "e": (0, 0.5, 0.2, 1),
    "f": (0, 0, 0.2, 0.5),
    "g": (0, 0.43, 1, 0.57),
}
"""Left, top, right and bottom of each bar, as shares of the digit."""


class Scene(NamedTuple):
    """Content of an image.

    Attributes:
        width, height: of the image in pixels.
        shape: one of ``SHAPES``.
        digit: the digit shown, if the shape is a digit.
        colour: a name of ``COLOURS``.
        copies: of the shape, side by side.
    """

    width: int
    height: int
    shape: str
    digit: int
    colour: str
    copies: int

    @property
    def thing(self) -> str:
        """The shape in words, with its article or number."""
        noun = f"{self.digit}" if self.shape == "digit" else self.shape
        if self.copies == 1:
            return f"the digit {noun} in {self.colour}" if self.shape == "digit" else f"one {self.colour} {noun}"
        number = ("", "one", "two", "three", "four")[self.copies]
        return (
            f"the digit {noun} {number} times in {self.colour}"
            if self.shape == "digit"
            else f"{number} {self.colour} {noun}s"
        )


def draw_scene(scene: Scene) -> Image.Image:
    """Return the image of a scene.

    Raises:
        MissingExtraError: Pillow is not installed.

    >>> picture = draw_scene(Scene(60, 40, "square", 0, "red", 1))
    >>> picture.size, picture.getpixel((30, 20)), picture.getpixel((2, 2))
    ((60, 40), (208, 60, 52), (247, 246, 242))
    """
    with optional("PIL", "media", "drawing pictures"):
        from PIL import Image, ImageDraw
    picture = Image.new("RGB", (scene.width, scene.height), (247, 246, 242))
    pen = ImageDraw.Draw(picture)
    colour = COLOURS[scene.colour]
    # Each copy stands in the middle of a column of its own.
    column = scene.width / scene.copies
    side = 0.7 * min(column, scene.height)
    for number in range(scene.copies):
        left, top = (number + 0.5) * column - side / 2, (scene.height - side) / 2
        box = (left, top, left + side, top + side)
        if scene.shape == "circle":
            pen.ellipse(box, fill=colour)
        elif scene.shape == "square":
            pen.rectangle(box, fill=colour)
        elif scene.shape == "triangle":
            pen.polygon([(left, top + side), (left + side, top + side), (left + side / 2, top)], fill=colour)
        else:
            for bar in _SEGMENTS[scene.digit]:
                x0, y0, x1, y1 = _BARS[bar]
                inner = 0.6 * side
                begin = left + 0.2 * side
                pen.rectangle((begin + x0 * inner, top + y0 * side, begin + x1 * inner, top + y1 * side), fill=colour)
    return picture


def make_tone(notes: str, seconds: float) -> Float32Array:
    """Return notes one after the other, each with two overtones and a soft end: ``float32[num_samples]``.

    >>> make_tone("CE", 0.5).shape
    (16000,)
    """
    time = np.arange(int(seconds * SAMPLING_RATE)) / SAMPLING_RATE
    fading = np.minimum(1, 40 * time) * np.exp(-3 * time / seconds)
    waves = [
        fading * sum(math.exp(-order) * np.sin(2 * np.pi * NOTES[note] * order * time) for order in (1, 2, 3))
        for note in notes
    ]
    return np.concatenate(waves).astype(np.float32)
