"""Chats about drawn images and tones, with texts between them, from a seed."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from brimful.demo.pictures import COLOURS, NOTES, SAMPLING_RATE, SHAPES, Scene, draw_scene, make_tone
from brimful.optional import optional
from brimful.rng import RandomStream, generator

_SIDES = (56, 224)
"""Minimum and maximum pixels of a side: 2 to 8 tokens of 28 pixels."""


@dataclass(frozen=True)
class MediaChats:
    """Rows and the files that they name.

    Attributes:
        chats: rows with ``messages`` and ``images``; rows of text have no images.
        tones: rows with ``messages`` and ``audios``.
        files: content of each file name: PNG and WAV.
    """

    chats: list[dict[str, Any]]
    tones: list[dict[str, Any]]
    files: dict[str, bytes]


def make_media_chats(*, num_chats: int = 360, num_tones: int = 60, seed: int = 0) -> MediaChats:
    """Make chats with no, one or several images, and chats with tones; the same seed gives the same chats.

    Of eight chats three are about one image, two about several, two have several turns on one, and one is text.

    Args:
        num_chats: rows of images and texts.
        num_tones: rows of tones.
        seed: of everything that is drawn.

    Raises:
        MissingExtraError: Pillow or soundfile is not installed.

    >>> made = make_media_chats(num_chats=8, num_tones=1)
    >>> [len(chat.get("images", ())) for chat in made.chats]
    [1, 1, 1, 2, 3, 1, 1, 0]
    >>> made == make_media_chats(num_chats=8, num_tones=1)
    True
    """
    draws = generator(seed=seed, epoch=0, purpose="demo: pictures and tones")
    files: dict[str, bytes] = {}
    chats = []
    for number in range(num_chats):
        kind = number % 8
        if kind == 7:
            chats.append(_chat(_sums(draws)))
            continue
        count = 1 if kind not in (3, 4) else kind - 1
        scenes = [_scene(draws) for _ in range(count)]
        names = [f"pictures/{number:04d}_{index}.png" for index in range(count)]
        files |= {name: _png(scene) for name, scene in zip(names, scenes, strict=True)}
        turns = _one(scenes[0]) if kind < 3 else _several(scenes) if kind < 5 else _long(scenes[0])
        chats.append({**_chat(turns), "images": names})
    tones = []
    for number in range(num_tones):
        notes = "".join(_choice(draws, NOTES) for _ in range(_number(draws, 1, 4)))
        name = f"tones/{number:04d}.wav"
        files[name] = _wav(notes, _number(draws, 3, 8) / 10)
        tones.append({**_chat(_heard(notes)), "audios": [name]})
    return MediaChats(chats, tones, files)


def _number(draws: RandomStream, least: int, most: int) -> int:
    return least + int(draws.integers(1, below=most - least + 1)[0])


def _choice(draws: RandomStream, names: Iterable[str]) -> str:
    choices = sorted(names)
    return choices[_number(draws, 0, len(choices) - 1)]


def _scene(draws: RandomStream) -> Scene:
    width, height = (_number(draws, *_SIDES) for _ in range(2))
    shape, colour = _choice(draws, SHAPES), _choice(draws, COLOURS)
    return Scene(width, height, shape, _number(draws, 0, 9), colour, _number(draws, 1, 4))


def _one(scene: Scene) -> list[tuple[str, str]]:
    return [("<image>\nWhat does the picture show?", f"It shows {scene.thing}.")]


def _several(scenes: list[Scene]) -> list[tuple[str, str]]:
    descriptions = " ".join(f"Picture {number} shows {scene.thing}." for number, scene in enumerate(scenes[:-1], 1))
    colours = [scene.colour for scene in scenes]
    answer = "all of one colour" if len(set(colours)) == 1 else f"not of one colour: {', '.join(colours)}"
    # The last image is in the second turn, so that several turns of one chat have media.
    return [
        (f"{'<image>' * (len(scenes) - 1)}\nWhat do you see?", descriptions),
        ("And with this one: <image> are they of one colour?", f"They are {answer}."),
    ]


def _long(scene: Scene) -> list[tuple[str, str]]:
    things = "digits" if scene.shape == "digit" else f"{scene.shape}s"
    orientation = "wide" if scene.width > scene.height else "high" if scene.height > scene.width else "square"
    counting_chat = " ".join(f"One more is {number}." for number in range(1, scene.copies + 1))
    return [
        ("Look at this.<image>", f"I see {scene.thing}."),
        (f"How many {things} are there?", f"I count from the left. {counting_chat} So there are {scene.copies}."),
        ("Is the picture wide or high?", f"It has {scene.width} by {scene.height} pixels, so it is {orientation}."),
    ]


def _sums(draws: RandomStream) -> list[tuple[str, str]]:
    numbers = [_number(draws, 2, 99) for _ in range(_number(draws, 2, 23))]
    total, lines = numbers[0], [f"We begin with {numbers[0]}."]
    for number in numbers[1:]:
        lines.append(f"Adding {number} to {total} makes {total + number}.")
        total += number
    return [(f"What is {' + '.join(map(str, numbers))}?", f"{' '.join(lines)} The sum is {total}.")]


def _heard(notes: str) -> list[tuple[str, str]]:
    number = "one note" if len(notes) == 1 else f"{len(notes)} notes"
    return [("<audio>Which notes do you hear?", f"I hear {number}: {', '.join(notes)}.")]


def _chat(turns: list[tuple[str, str]]) -> dict[str, Any]:
    messages = []
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def _png(scene: Scene) -> bytes:
    file = io.BytesIO()
    draw_scene(scene).save(file, "PNG")
    return file.getvalue()


def _wav(notes: str, seconds: float) -> bytes:
    with optional("soundfile", "media", "writing tones"):
        import soundfile
    file = io.BytesIO()
    soundfile.write(file, make_tone(notes, seconds), SAMPLING_RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()
