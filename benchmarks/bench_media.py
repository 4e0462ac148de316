"""Measuring of pictures by their headers, beside the processor of Transformers on the same files.

Both go from a path to the number of tokens: ours reads the header, the processor decodes, resizes and cuts into patches. Counts are
compared before anything is timed. One process, one thread, in turn.

Then whole measuring (rows, templates, tokens, headers) of the same pictures many times over, each row with three of them: on all
cores of the machine against one process, from the first row to the saved table, start of processes included.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from compare import SHARED_DATA, Row, in_turn, main_of

from brimful import measure_lengths, open_source
from brimful.base.execute import available_cores
from brimful.media import MediaKind, Medium
from brimful.media.families import open_family
from brimful.sources.rows import BLOCK_ROWS

__all__ = ["measure"]


def measure(quick: bool) -> list[Row]:
    """Rows for the shared table."""
    folder, processor_dir = (
        SHARED_DATA / "multimodal" / "mathvision" / "images",
        SHARED_DATA / "tokenizers" / "qwen2.5",
    )
    paths = sorted(folder.glob("*.jpg"))[: 20 if quick else None]
    if not paths:
        print("no real data: nothing measured", file=sys.stderr)
        return []
    import torch
    from transformers import Qwen2VLImageProcessorPil
    from transformers.image_utils import load_image

    torch.set_num_threads(1)
    family = open_family("qwen2-vl", processor_dir)
    processor = Qwen2VLImageProcessorPil.from_pretrained(processor_dir)

    def headers(paths: Sequence[Path]) -> list[int]:
        return [
            family.expand(Medium(MediaKind.IMAGE, path.name, str(path))).num_tokens
            for path in paths
        ]

    def by_processor(paths: Sequence[Path]) -> list[int]:
        return [
            int(processor(load_image(str(path)))["image_grid_thw"][0].prod()) // 4 for path in paths
        ]

    assert headers(paths) == by_processor(paths), "the header gives other tokens than the processor"
    seconds = in_turn(
        {"headers": lambda: headers(paths), "processor": lambda: by_processor(paths)},
        repetitions=1 if quick else 3,
    )
    title = f"tokens of {len(paths)} pictures of MathVision"
    return [
        Row(title, "ms", 1e3 * seconds["headers"], "Qwen2VLImageProcessorPil", 1e3 * seconds["processor"],
            less_is_better=True, aim=50.0),
        *([] if quick else [_by_processes(paths)]),
    ]  # fmt: skip


def _by_processes(paths: Sequence[Path]) -> Row:
    """Rows a second that all cores measure, beside one process; lengths are compared."""
    from brimful.media.encode.media_chat import MediaChatEncoder

    tokenizer_dir = SHARED_DATA / "tokenizers" / "qwen2.5"
    encoder = MediaChatEncoder(
        tokenizer_dir,
        open_family("qwen2-vl", tokenizer_dir),
        chat_template=tokenizer_dir / "chat_template_vl.jinja",
    )
    num_cores = available_cores()
    # Whole blocks, as many for each core.
    num_rows = 3 * num_cores * BLOCK_ROWS
    seconds: dict[int, list[float]] = {1: [], num_cores: []}
    with tempfile.TemporaryDirectory() as home:
        rows = Path(home) / "rows.jsonl"
        with open(rows, "w", encoding="utf-8") as file:
            for number in range(num_rows):
                images = [str(paths[(number + place) % len(paths)]) for place in range(3)]
                question = f"<image>Question {number}<image>or this<image>?"
                file.write(
                    json.dumps({"question": question, "answer": "This one.", "images": images})
                    + "\n"
                )
        source = open_source(
            rows, media=True, media_dir=paths[0].parent, cache_dir=Path(home) / "index"
        )
        lengths = {}
        for repetition in range(2):
            for num_proc, times in seconds.items():
                start = time.perf_counter()
                cache_dir = Path(home) / f"{num_proc}-{repetition}"
                lengths[num_proc] = measure_lengths(
                    source, encoder, num_proc=num_proc, cache_dir=cache_dir
                ).tokens
                times.append(time.perf_counter() - start)
        assert np.array_equal(lengths[1], lengths[num_cores]), "processes count other tokens"
    rates = {num_proc: num_rows / min(times) for num_proc, times in seconds.items()}
    title = f"measure {num_rows:,} rows with three pictures each, {num_cores} processes"
    return Row(title, "rows/s", rates[num_cores], "one process", rates[1], aim=0.75 * num_cores)


if __name__ == "__main__":
    main_of(measure, __doc__)
