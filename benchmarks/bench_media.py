"""Measuring of pictures by their headers, beside the processor of Transformers on the same files.

Both go from a path to the number of tokens: ours reads the header, the processor decodes, resizes and cuts into patches. Counts are
compared before anything is timed. One process, one thread, in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from compare import SHARED_DATA, Row, in_turn, main_of

from brimful.media import MediaKind, Medium
from brimful.media.families import open_family

__all__ = ["measure"]


def measure(quick: bool) -> list[Row]:
    """Rows for the shared table."""
    folder, processor_dir = SHARED_DATA / "multimodal" / "mathvision" / "images", SHARED_DATA / "tokenizers" / "qwen2.5"
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
        return [family.expand(Medium(MediaKind.IMAGE, path.name, str(path))).num_tokens for path in paths]

    def by_processor(paths: Sequence[Path]) -> list[int]:
        return [int(processor(load_image(str(path)))["image_grid_thw"][0].prod()) // 4 for path in paths]

    assert headers(paths) == by_processor(paths), "the header gives other tokens than the processor"
    seconds = in_turn(
        {"headers": lambda: headers(paths), "processor": lambda: by_processor(paths)}, repetitions=1 if quick else 3
    )
    title = f"tokens of {len(paths)} pictures of MathVision"
    return [
        Row(title, "ms", 1e3 * seconds["headers"], "Qwen2VLImageProcessorPil", 1e3 * seconds["processor"],
            less_is_better=True, aim=50.0)
    ]  # fmt: skip


if __name__ == "__main__":
    main_of(measure, __doc__)
