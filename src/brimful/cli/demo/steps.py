"""Steps of the demo, in the order shown. Its commands run as printed; a second run resumes a
stopped one.
"""

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.base.atomic_file import atomic_file
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.drawn_chats import MediaChats, make_media_chats
from brimful.cli.demo.toy_model import make_model, train_tokenizer
from brimful.errors import SettingsError, TaskFailedError, missing_extra
from brimful.serve import open_packs

Say = Callable[[str], object]
"""Function that receives each line."""

_MARK = "demo.json"
"""File that marks a directory as belonging to this demo."""

_MAX_LINES_OF_PACK = 40
"""Maximum number of lines shown of the inspected pack; the others are counted."""

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


def run_demo(directory: AnyPath, say: Say = print, *, limit: int | None = None) -> dict[str, Any]:
    """Make chats, a tokenizer and a tiny model; pack, report and inspect.

    Args:
        directory: new, empty, or of an earlier run, which it resumes; receives ``chats.jsonl``,
            ``tokenizer/``, ``model/``, ``packs/`` and ``cache/``.
        say: receives each line.
        limit: largest number of chats; None for all.

    Returns:
        The summary of ``packs``, as its ``summary.json`` has it.

    Raises:
        MissingExtraError: a required package is not installed.
        SettingsError: the directory has files of another origin.
        SourceNotFoundError: this Python has no sources of its library.
        TaskFailedError: a command failed, and printed the reason.
    """
    mark = {"demo": "text", "python": platform.python_version(), "chats": limit}
    show = _Show(directory, say, mark, "text,torch", ("tokenizers", "transformers", "torch"))
    home = show.home

    show.title("Chats: questions about Python's standard library, answered by its docstrings")
    chats = make_chats(limit=limit)
    num_bytes = write_file(home / "chats.jsonl", _json_lines(chats))
    say(f"chats.jsonl    {len(chats):,} chats, {num_bytes / 1e6:.1f} MB; one of them:")
    for turn in chats[0]["messages"][:2]:
        say(f"               {turn['role'] + ':':<11}{' '.join(turn['content'].split())[:90]}")

    show.title("A tokenizer: byte-level BPE, trained on these texts, with a chat template")
    vocab_size = train_tokenizer(_texts(chats), home / "tokenizer")
    say(f"tokenizer/     {vocab_size:,} entries")
    # Saved with its tokenizer, like models of the hub.
    make_model(vocab_size).save_pretrained(home / "model")
    shutil.copytree(home / "tokenizer", home / "model", dirs_exist_ok=True)
    say("model/         a tiny Qwen2 of random weights with it, for the code in the docs")

    show.title("Pack: exact lengths, a plan, and packs of at most 2,048 tokens")
    options = ("--tokenizer", "tokenizer", "--max-length", "2048", "--overflow", "drop")
    show.run("pack", "chats.jsonl", "-o", "packs", *options)

    show.title("Report: where the tokens are, and what other capacities would give")
    show.run("report", "packs")

    show.title("Inspect: one pack with its boundaries; targets of the loss stand between ⟦ and ⟧")
    packs = open_packs(home / "packs")
    full = (
        index
        for index, pack in enumerate(packs)
        if len(pack) == packs.capacity and 3 <= pack.num_segments <= 6
    )
    show.run("inspect", "packs", "--pack", str(next(full, 0)), max_lines=_MAX_LINES_OF_PACK)

    return show.end(
        "  pack your data     brimful pack chats.jsonl -o packs --tokenizer DIR|ID --max-length "
        "8192 --overflow drop",
        '  train with it      Trainer(model, train_dataset=PackedDataset("packs"), data_collator=collator_for(model))',
        "  prove it           brimful verify --model model packs",
    )


def run_multimodal_demo(
    directory: AnyPath,
    say: Say = print,
    *,
    num_chats: int = 360,
    num_tones: int = 60,
) -> dict[str, Any]:
    """Draw images and tones; pack chats about them, inspect, report and export.

    Args:
        directory: new, empty, or of an earlier run, which it resumes.
        say: receives each line.
        num_chats, num_tones: rows of images and texts, and of tones.

    Returns:
        The summary of ``packs``, as its ``summary.json`` has it.

    Raises:
        MissingExtraError: a required package is not installed.
        SettingsError: the directory has files of another origin.
        TaskFailedError: a command failed, and printed the reason.
    """
    mark = {"demo": "multimodal", "chats": num_chats, "tones": num_tones}
    packages = ("tokenizers", "transformers", "torch", "PIL", "soundfile")
    show = _Show(directory, say, mark, "text,torch,media", packages)
    home = show.home

    show.title("Images and tones: drawn from a seed, with chats about them and texts between")
    media_chats = write_media_chats(home, num_chats=num_chats, num_tones=num_tones)
    num_bytes = sum(map(len, media_chats.files.values()))
    say(f"pictures/      {len(media_chats.files) - num_tones:,} images in {num_chats:,} chats")
    say(f"tones/         {num_tones:,} tones; {num_bytes / 1e6:.1f} MB in all. Two of the rows:")
    for row in (media_chats.chats[3], media_chats.tones[0]):
        say(f"               {json.dumps(row)[:160]} …")
    say("processor/     of Qwen2-VL: patches of 14 pixels, four of them a token")
    say("sounds/        of Qwen2-Audio: spectrograms, 25 tokens a second")

    show.title("Pack images and texts: at most 512 tokens and 768 patches in a pack")
    limits = ("--max-length", "512", "--max-patches", "768")
    show.run("pack", "chats.jsonl", "-o", "packs", "--processor", "processor", *limits)

    show.title("Pack tones, with the options in a file")
    for line in _TONES_YAML.splitlines():
        say(f"               {line}")
    show.run("pack", "--config", "tones.yaml")

    show.title("Inspect: one pack; targets of the loss stand between ⟦ and ⟧")
    mixtures = (
        (pack.num_segments, index)
        for index, pack in enumerate(open_packs(home / "packs"))
        if 0 < len({item.segment for item in pack.media}) < pack.num_segments
    )
    index = min(mixtures, default=(0, 0))[1]
    show.run("inspect", "packs", "--pack", str(index), max_lines=_MAX_LINES_OF_PACK)

    show.title("Report: a page with packs as drawings")
    show.run("report", "packs", "-o", "packs.html", max_lines=12)
    show.run("report", "packs-of-tones", "-o", "tones.html", max_lines=1)

    show.title("Export: the same packs for another trainer")
    show.run("export", "packs", "--to", "webdataset", "-o", "webdataset")

    return show.end(
        "  look at the packs  packs.html and tones.html in a browser",
        "  pack your data     brimful pack photos.jsonl -o packs --processor DIR --max-length "
        "8192 --max-patches 32768",
    )


class _Show:
    """Titles, commands and the directory of a demo, which is new, empty, or of an earlier run of
    the same demo.
    """

    def __init__(
        self,
        directory: AnyPath,
        say: Say,
        mark: Mapping[str, Any],
        extras: str,
        packages: Sequence[str],
    ) -> None:
        for package in packages:
            if importlib.util.find_spec(package) is None:
                raise missing_extra(package, extras, "brimful demo")
        self.home = Path(directory).absolute()
        title, mark_file, text = (
            setting("directory", str(self.home)),
            self.home / _MARK,
            json.dumps(mark),
        )
        if self.home.exists() and not self.home.is_dir():
            raise SettingsError(f"{title} is a file: name a new directory for the demo")
        is_used = self.home.exists() and any(self.home.iterdir())
        if is_used and not (mark_file.is_file() and mark_file.read_text(encoding="utf-8") == text):
            raise SettingsError(
                f"{title} has files already, and not of this demo; name a new directory"
            )
        write_file(mark_file, text.encode())
        self._say, self._start, self._number = say, time.monotonic(), 0
        say(f"Everything goes to {self.home}. Nothing is downloaded. Commands run there, after")
        say("$ export BRIMFUL_CACHE=$PWD/cache")

    def title(self, text: str) -> None:
        """Show the title of the next step."""
        self._number += 1
        for line in ("", f"{self._number}. {text}", ""):
            self._say(line)

    def run(self, *arguments: str, max_lines: int | None = None) -> None:
        """Show a command, run it in the directory of the demo, and show its output.

        Raises:
            TaskFailedError: the command failed, and printed the reason.
        """
        command = f"brimful {' '.join(arguments)}"
        self._say(f"$ {command}")
        # The cache belongs to the demo too, and no command contacts the hub.
        settings = {
            "BRIMFUL_CACHE": str(self.home / "cache"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUTF8": "1",
        }
        process = subprocess.run(
            [sys.executable, "-m", "brimful", *arguments],
            cwd=self.home,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=False,
        )
        lines = process.stdout.splitlines()
        for line in lines[:max_lines]:
            self._say(line)
        if max_lines is not None and len(lines) > max_lines:
            self._say(f"(trimmed here: {len(lines) - max_lines:,} more lines)")
        if process.returncode:
            raise TaskFailedError(
                f"`{command}` ended with exit code {process.returncode}; see above"
            )

    def end(self, *next_steps: str) -> dict[str, Any]:
        """Show what to do next, and return the summary of the packs."""
        for line in (
            "",
            f"The demo took {time.monotonic() - self._start:.0f} s. What to do next:",
            *next_steps,
            "  see every option   brimful pack --help",
        ):
            self._say(line)
        summary: dict[str, Any] = json.loads(
            (self.home / "packs" / "summary.json").read_text("utf-8")
        )
        return summary


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
        write_file(home / name, content)
    return media_chats


def write_file(path: Path, content: bytes) -> int:
    """Write a file unless it has this content already; return its bytes."""
    # The date of a file shows whether it changed.
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(str(path)) as file:
            file.write(content)
    return len(content)


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [turn["content"] for row in rows for turn in row["messages"]]
