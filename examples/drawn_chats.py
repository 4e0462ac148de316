"""Chats about drawn images and tones, from a seed; packed, shown, and exported.

    python examples/drawn_chats.py DIRECTORY

Draws images and tones, writes chats about them with texts between, trains a tokenizer, and runs the commands that it prints. Run again
on the same directory, it continues. It needs the extras ``text`` and ``media``; nothing is downloaded.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from brimful.base.optional import optional
from brimful.base.rng import RandomStream, generator
from brimful.cli.demo.docstring_chats import make_chat
from brimful.cli.demo.toy_model import train_tokenizer

_SIDES = (56, 224)
"""Minimum and maximum pixels of a side: 2 to 8 tokens of 28 pixels."""

_COLORS = ("blue", "green", "orange", "purple", "red", "yellow")
_SHAPES = ("circle", "square", "triangle")
_NUMBERS = ("", "one", "two", "three", "four")

_NOTES = {"A": 440.0, "B": 493.88, "C": 261.63, "D": 293.66, "E": 329.63, "F": 349.23, "G": 392.0}
"""Notes of the octave from middle C, in hertz."""

_SAMPLING_RATE = 16_000
"""Samples of a tone in a second."""


_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'audio' -%}{{ '<|audio_bos|><|AUDIO|><|audio_eos|>' }}"
    "{%- else -%}{{ part['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""Chat template that supports images and audio, with the tokens of Qwen2-VL and Qwen2-Audio."""

_MEDIA_TOKENS = (
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
    "<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>",
)  # fmt: skip

_IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "min_pixels": 56 * 56,
    "max_pixels": 224 * 224,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_AUDIO_PROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "Qwen2AudioProcessor",
    "feature_size": 128,
    "sampling_rate": 16_000,
    "chunk_length": 30,
}
_TONES_YAML = """\
source: tones.jsonl
output: packs-of-tones
processor: sounds
tokenizer: processor
packing: true
packing_length: 512
sampling_rate: 16000
"""

COMMANDS = (
    "brimful pack chats.jsonl -o packs --processor processor --max-length 512 --max-patches 768",
    "brimful pack --config tones.yaml",
    "brimful inspect packs --pack 0",
    "brimful report packs -o packs.html",
    "brimful report packs-of-tones -o tones.html",
    "brimful export packs --to webdataset -o webdataset",
)
"""What to do with the data, in its directory."""


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


class _Scene(NamedTuple):
    """Content of an image: ``copies`` of a shape in one color, in ``width`` by ``height``
    pixels.
    """

    width: int
    height: int
    shape: str
    color: str
    copies: int

    def __str__(self) -> str:
        return f"{_NUMBERS[self.copies]} {self.color} {self.shape}{'s' * (self.copies > 1)}"


def make_media_chats(*, num_chats: int = 360, num_tones: int = 60, seed: int = 0) -> MediaChats:
    """Make chats with no, one or several images, and chats with tones; the same seed gives the same
    chats.

    Of eight chats three are about one image, two about several, two have several turns on one, and
    one is text.

    Args:
        num_chats: rows of images and texts.
        num_tones: rows of tones.
        seed: of everything that is drawn.

    Raises:
        MissingExtraError: Pillow or soundfile is not installed.

    >>> example = make_media_chats(num_chats=8, num_tones=1)
    >>> [len(chat.get("images", ())) for chat in example.chats]
    [1, 1, 1, 2, 3, 1, 1, 0]
    >>> example == make_media_chats(num_chats=8, num_tones=1)
    True
    """
    draws = generator(seed=seed, epoch=0, purpose="demo: pictures and tones")
    files: dict[str, bytes] = {}
    chats: list[dict[str, Any]] = []
    for number in range(num_chats):
        kind = number % 8
        if kind == 7:
            chats.append({**make_chat(_sum(draws))})
            continue
        scenes = [_draw_scene(draws) for _ in range(kind - 1 if kind in (3, 4) else 1)]
        names = [f"pictures/{number:04d}_{index}.png" for index in range(len(scenes))]
        files |= {name: _png(scene) for name, scene in zip(names, scenes, strict=True)}
        questions = _one_turn if kind < 3 else _several_images if kind < 5 else _several_turns
        chats.append({**make_chat(*questions(scenes)), "images": names})
    tones: list[dict[str, Any]] = []
    for number in range(num_tones):
        notes = [_choice(draws, _NOTES) for _ in range(_number(draws, 1, 4))]
        name = f"tones/{number:04d}.wav"
        files[name] = _wav(notes, seconds=_number(draws, 3, 8) / 10)
        count = "one note" if len(notes) == 1 else f"{len(notes)} notes"
        chat = make_chat(
            ("<audio>Which notes do you hear?", f"I hear {count}: {', '.join(notes)}.")
        )
        tones.append({**chat, "audios": [name]})
    return MediaChats(chats, tones, files)


def _number(draws: RandomStream, least: int, most: int) -> int:
    return least + int(draws.integers(1, below=most - least + 1)[0])


def _choice(draws: RandomStream, names: Iterable[str]) -> str:
    choices = list(names)
    return choices[_number(draws, 0, len(choices) - 1)]


def _draw_scene(draws: RandomStream) -> _Scene:
    width, height = (_number(draws, *_SIDES) for _ in range(2))
    return _Scene(
        width, height, _choice(draws, _SHAPES), _choice(draws, _COLORS), _number(draws, 1, 4)
    )


def _one_turn(scenes: list[_Scene]) -> list[tuple[str, str]]:
    return [("<image>\nWhat does the picture show?", f"It shows {scenes[0]}.")]


def _several_images(scenes: list[_Scene]) -> list[tuple[str, str]]:
    # The last image is in the second turn, so that several turns of one chat have media.
    return [
        (
            f"{'<image>' * (len(scenes) - 1)}\nWhat do you see?",
            f"I see {', '.join(map(str, scenes[:-1]))}.",
        ),
        (
            "And with this one: <image> which colors are they?",
            ", ".join(scene.color for scene in scenes),
        ),
    ]


def _several_turns(scenes: list[_Scene]) -> list[tuple[str, str]]:
    (scene,) = scenes
    counting = " ".join(f"One more is {number}." for number in range(1, scene.copies + 1))
    return [
        ("Look at this.<image>", f"I see {scene}."),
        (
            f"How many {scene.shape}s are there?",
            f"I count from the left. {counting} So there are {scene.copies}.",
        ),
        ("How large is the picture?", f"It has {scene.width} by {scene.height} pixels."),
    ]


def _sum(draws: RandomStream) -> tuple[str, str]:
    numbers = [_number(draws, 2, 99) for _ in range(_number(draws, 2, 23))]
    lines = [
        f"Adding {number} makes {sum(numbers[: index + 1])}."
        for index, number in enumerate(numbers)
    ]
    return (
        f"What is {' + '.join(map(str, numbers))}?",
        f"{' '.join(lines)} The sum is {sum(numbers)}.",
    )


def _png(scene: _Scene) -> bytes:
    """Draw the copies of a shape side by side."""
    with optional("PIL", "media", "drawing pictures"):
        from PIL import Image, ImageDraw
    image = Image.new("RGB", (scene.width, scene.height), "white")
    pen = ImageDraw.Draw(image)
    column = scene.width / scene.copies
    radius = 0.35 * min(column, scene.height)
    for number in range(scene.copies):
        x, y = (number + 0.5) * column, scene.height / 2
        if scene.shape == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=scene.color)
        else:
            pen.regular_polygon(
                (x, y, radius), 3 if scene.shape == "triangle" else 4, fill=scene.color
            )
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _wav(notes: list[str], *, seconds: float) -> bytes:
    """Write notes one after the other, each with a soft end."""
    with optional("soundfile", "media", "writing tones"):
        import soundfile
    time = np.arange(int(seconds * _SAMPLING_RATE)) / _SAMPLING_RATE
    waves = [
        0.6 * np.exp(-3 * time / seconds) * np.sin(2 * np.pi * _NOTES[note] * time)
        for note in notes
    ]
    file = io.BytesIO()
    soundfile.write(file, np.concatenate(waves), _SAMPLING_RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def write_media_chats(home: Path, *, num_chats: int, num_tones: int) -> MediaChats:
    """Write drawn chats, their files and two processors; files that are there stay.

    Args:
        home: receives ``chats.jsonl``, ``tones.jsonl``, ``pictures/``, ``tones/``, ``processor/``
            with the tokenizer, ``sounds/`` and ``tones.yaml``.
        num_chats, num_tones: rows of images and texts, and of tones.

    Returns:
        The chats.
    """
    media_chats = make_media_chats(num_chats=num_chats, num_tones=num_tones)
    # The settings of a processor are written last: without them it is not finished.
    if not (home / "processor" / "preprocessor_config.json").exists():
        train_tokenizer(
            _texts([*media_chats.chats, *media_chats.tones]),
            home / "processor",
            vocab_size=1200,
            special_tokens=_MEDIA_TOKENS,
            chat_template=_TEMPLATE,
        )
    contents = {
        **media_chats.files,
        "chats.jsonl": _json_lines(media_chats.chats),
        "tones.jsonl": _json_lines(media_chats.tones),
        "processor/preprocessor_config.json": json.dumps(_IMAGE_PROCESSOR).encode(),
        "sounds/preprocessor_config.json": json.dumps(_AUDIO_PROCESSOR).encode(),
        "tones.yaml": _TONES_YAML.encode(),
    }
    for name, content in contents.items():
        # The date of a file shows whether it changed.
        if not (home / name).exists():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_bytes(content)
    return media_chats


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [turn["content"] for row in rows for turn in row["messages"]]


def main(directory: str) -> None:
    home = Path(directory).absolute()
    drawn = write_media_chats(home, num_chats=360, num_tones=60)
    print(f"{len(drawn.files):,} images and tones in {home}; one of the chats:")
    print(json.dumps(drawn.chats[3]))
    environment = {**os.environ, "BRIMFUL_CACHE": str(home / "cache"), "HF_HUB_OFFLINE": "1"}
    for command in COMMANDS:
        print(f"\n$ {command}", flush=True)
        words = [sys.executable, "-m", *shlex.split(command)]
        subprocess.run(words, cwd=home, env=environment, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
