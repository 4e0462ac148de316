"""Steps of the demo on images and tones, in the order shown. A second run resumes a stopped one."""

import importlib.util
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from brimful.demo.commands import Say, claim, run_command, show_title, write_file
from brimful.demo.media_chats import MediaChats, make_media_chats
from brimful.demo.tokenizer import train_tokenizer
from brimful.demo.train import TrainingRun, draw_comparison
from brimful.errors import missing_extra
from brimful.serve import PackStore, open_packs

_CAPACITY, _MAX_PATCHES = 512, 768
"""Tokens and patches of a pack: either may fill it."""

_MAX_LINES_OF_PACK = 36
"""Maximum number of lines shown of the inspected pack; the others are counted."""

_PACKAGES = {"tokenizers": "text", "transformers": "text", "torch": "torch", "PIL": "media", "soundfile": "media"}
"""Required packages, each with its extra."""

_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'audio' -%}{{ '<|audio_bos|><|AUDIO|><|audio_eos|>' }}"
    "{%- else -%}{{ part['text'] }}{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""Chat template that supports images and audio, with the marks of Qwen2-VL and Qwen2-Audio."""

MARKS = (
    "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>",
)  # fmt: skip
"""Tokens of the template and of the media."""

_PICTURES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "min_pixels": 56 * 56,
    "max_pixels": 224 * 224,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_SOUNDS = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "Qwen2AudioProcessor",
    "feature_size": 128,
    "sampling_rate": 16_000,
    "chunk_length": 30,
}


def run_multimodal_demo(
    directory: str | os.PathLike[str], say: Say = print, *, num_chats: int = 360, num_tones: int = 60, steps: int = 10
) -> tuple[TrainingRun, TrainingRun]:
    """Draw images and tones, pack chats about them, report, inspect, and train a tiny model packed and padded.

    Args:
        directory: new, empty, or of an earlier run, which it resumes.
        say: receives each line.
        num_chats, num_tones: rows of images and texts, and of tones.
        steps: optimizer steps of each training.

    Returns:
        The packed run and the padded one.

    Raises:
        MissingExtraError: a required package is not installed.
        SettingsError: the directory has files of another origin.
        TaskFailedError: a command failed, and printed the reason.
    """
    for package, extra in _PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, "text,torch,media", f"brimful demo (extra {extra})")
    home = claim(Path(directory).absolute(), {"demo": "multimodal", "chats": num_chats, "tones": num_tones})
    start = time.monotonic()
    say(f"Everything goes to {home}. Nothing is downloaded.")

    show_title(say, 1, "Images and tones: drawn from a seed, with chats about them and texts between")
    result = make_media_chats(num_chats=num_chats, num_tones=num_tones)
    num_bytes = write_media_chats(result, home)
    say(f"pictures/      {sum(len(chat.get('images', ())) for chat in result.chats):,} images in {num_chats:,} chats")
    say(f"tones/         {num_tones:,} tones; {num_bytes / 1e6:.1f} MB in all. Two of the rows:")
    for row in (result.chats[3], result.tones[0]):
        say(f"               {json.dumps(row)[:160]} …")

    show_title(say, 2, "A tokenizer with marks for media, and the settings of two processors")
    texts = [turn["content"] for row in (*result.chats, *result.tones) for turn in row["messages"]]
    write_processors(texts, home)
    say("processor/     of Qwen2-VL: patches of 14 pixels, four of them a token")
    say("sounds/        of Qwen2-Audio: spectrograms, 25 tokens a second")

    show_title(say, 3, f"Pack images and texts: at most {_CAPACITY:,} tokens and {_MAX_PATCHES:,} patches in a pack")
    say(f"$ cd {home}")
    say("$ export BRIMFUL_CACHE=$PWD/cache")
    limits = ["--max-length", str(_CAPACITY), "--max-patches", str(_MAX_PATCHES)]
    run_command(say, home, ["pack", "chats.jsonl", "-o", "packs", "--processor", "processor", *limits])

    show_title(say, 4, "Pack tones, with the options in a file")
    for line in (home / "tones.yaml").read_text(encoding="utf-8").splitlines():
        say(f"               {line}")
    run_command(say, home, ["pack", "--config", "tones.yaml"])

    show_title(say, 5, "Inspect: one pack; targets of the loss stand between ⟦ and ⟧")
    index = _readable_pack(open_packs(home / "packs"))
    run_command(say, home, ["inspect", "packs", "--pack", str(index)], max_lines=_MAX_LINES_OF_PACK)

    show_title(say, 6, "Report: a page with packs as drawings")
    run_command(say, home, ["report", "packs", "-o", "packs.html"], max_lines=12)
    run_command(say, home, ["report", "packs-of-tones", "-o", "tones.html"], max_lines=1)

    number = 7
    if importlib.util.find_spec("brimful.cli.export") is not None:
        show_title(say, number, "Export: the same packs for another trainer")
        run_command(say, home, ["export", "packs", "--to", "webdataset", "-o", "webdataset"])
        number += 1

    show_title(
        say, number, "Train: a tiny Qwen2-VL with random weights, the same samples at every step, packed and padded"
    )
    say("packed         4 packs a step, one a forward")
    say("padded         the samples of the same packs, shuffled, 8 a forward, padded to the longest of the 8")
    from brimful.demo.media_train import compare_media_training

    runs = compare_media_training(home / "packs", home / "processor", steps=steps)
    for line in (
        "",
        *draw_comparison(*runs),
        "",
        f"The demo took {time.monotonic() - start:.0f} s. What to do next:",
        "  look at the packs  packs.html and tones.html in a browser",
        "  pack your data     brimful pack photos.jsonl -o packs --processor DIR --max-length 8192 --max-patches 32768",
        "  see every option   brimful pack --help",
    ):
        say(line)
    return runs


def write_media_chats(made: MediaChats, home: Path) -> int:
    """Write rows and files that are missing, each whole or not at all; return the bytes of all.

    Args:
        made: the chats.
        home: receives ``chats.jsonl``, ``tones.jsonl``, ``pictures/`` and ``tones/``.
    """
    contents = dict(made.files)
    for name, rows in (("chats.jsonl", made.chats), ("tones.jsonl", made.tones)):
        contents[name] = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for name, content in contents.items():
        write_file(home / name, content)
    return sum(map(len, contents.values()))


def write_processors(texts: Iterable[str], home: Path) -> None:
    """Write ``processor/`` with the tokenizer, ``sounds/``, and ``tones.yaml``; existing files stay.

    Args:
        texts: text that the tokenizer learns from.
        home: directory of the demo.
    """
    processor = home / "processor"
    # The settings are written last: a processor without them is not finished.
    if not (processor / "preprocessor_config.json").exists():
        train_tokenizer(texts, processor, vocab_size=1200, special_tokens=MARKS, chat_template=_TEMPLATE)
    write_file(processor / "preprocessor_config.json", json.dumps(_PICTURES, indent=1).encode())
    write_file(home / "sounds" / "preprocessor_config.json", json.dumps(_SOUNDS, indent=1).encode())
    lines = (
        "source: tones.jsonl",
        "output: packs-of-tones",
        "processor: sounds",
        "tokenizer: processor",
        "packing: true",
        "packing_length: 512",
        "sampling_rate: 16000",
    )
    write_file(home / "tones.yaml", "".join(f"{line}\n" for line in lines).encode())


def _readable_pack(packs: PackStore) -> int:
    """Return the pack with the fewest segments that has a segment with images and one without."""
    mixture_of_packs = [
        (pack.num_segments, index)
        for index, pack in enumerate(packs)
        if 0 < len({item.segment for item in pack.media}) < pack.num_segments
    ]
    return min(mixture_of_packs, default=(0, 0))[1]
