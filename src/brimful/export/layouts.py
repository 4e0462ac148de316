"""All layouts."""

from brimful.errors import SettingsError
from brimful.export.bridge import BridgeLayout
from brimful.export.energon import EnergonLayout
from brimful.export.huggingface import HuggingFaceLayout
from brimful.export.jsonl import JsonLinesLayout
from brimful.export.layout import Layout
from brimful.export.megatron import MegatronLayout
from brimful.export.packed_pairs import PackedCaptionsLayout, PackedChatsLayout
from brimful.export.webdataset import WebDatasetLayout
from brimful.messages import setting

_CLASSES: tuple[type[Layout], ...] = (
    EnergonLayout,
    WebDatasetLayout,
    HuggingFaceLayout,
    MegatronLayout,
    BridgeLayout,
    JsonLinesLayout,
    PackedCaptionsLayout,
    PackedChatsLayout,
)

LAYOUTS: dict[str, type[Layout]] = {layout.name: layout for layout in _CLASSES}
"""Class of each layout, by the name that ``export_packs`` and the command line take."""


def layout_of(name: str) -> Layout:
    """Return a layout by its name.

    Raises:
        SettingsError: no such layout; lists all.

    >>> layout_of("energon").name
    'energon'
    """
    if name not in LAYOUTS:
        raise SettingsError(f"{setting('to')} {name!r} is unknown: use one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]()
