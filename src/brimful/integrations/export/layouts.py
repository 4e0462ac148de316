"""All layouts."""

from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.integrations.export.energon import EnergonLayout
from brimful.integrations.export.export_layout import Layout
from brimful.integrations.export.megatron import MegatronLayout
from brimful.integrations.export.packed_pairs import PackedCaptionsLayout, PackedChatsLayout
from brimful.integrations.export.row_layouts import BridgeLayout, HuggingFaceLayout, JsonLinesLayout
from brimful.integrations.export.webdataset import WebDatasetLayout

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
