"""Qwen2.5-VL: Qwen2-VL by another name, with positions that follow seconds, which lengths do not show."""

from __future__ import annotations

from brimful.media.families.qwen2_vl import Qwen2VL


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: its processor cuts pictures and videos as that of Qwen2-VL does."""

    name = "qwen2.5-vl"
    processor_class = "Qwen2_5_VLProcessor"
