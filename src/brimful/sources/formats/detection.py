"""An image and the boxes of the objects in it, as text."""

import json
from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.conversation import as_text, preview
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import MalformedRowError, exchange

SCALE = 1000
"""Units along each side of an image: coordinates do not depend on the size to which a processor resizes it."""

_CORNER_AND_SIZE = ("bbox", "bbox_xywh")
_TWO_CORNERS = ("bbox_2d", "bbox_xyxy")
_LABELS = ("label", "category", "name")


class Detection(RowFormat):
    """``{"image": …, "width": …, "height": …, "objects": [{"label": …, "bbox": [x, y, width, height]}, …]}``.

    The answer is JSON: ``[{"bbox_2d": [x1, y1, x2, y2], "label": …}, …]``, corners from 0 to 1000 along each side, as
    Qwen-VL and InternVL write them. In the row they are pixels: ``bbox`` or ``bbox_xywh`` as in COCO, ``bbox_2d`` or
    ``bbox_xyxy`` as two corners; the label is ``label``, ``category`` or ``name``. The order of the objects stays.
    COCO's crowds (``iscrowd``) are not single objects and are left out.

    >>> row = {"width": 200, "height": 100, "objects": [{"label": "cat", "bbox": [20, 10, 100, 50]}]}
    >>> Detection().convert(row)["messages"][1]["content"]
    '[{"bbox_2d": [100, 100, 600, 600], "label": "cat"}]'
    """

    name = "detection"
    default_fields = {"objects": "objects", "width": "width", "height": "height"}
    required_fields = ("objects", "width", "height")
    default_prompt = "Detect all objects in this image. Answer with their boxes as JSON."
    puts_media_first = True

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        objects, key = self.get(row, "objects"), self.fields["objects"]
        if not isinstance(objects, list):
            raise MalformedRowError(f"{key!r} must be a list of objects and is {preview(objects)}")
        size = (self._side(row, "width"), self._side(row, "height"))
        boxes = [
            _box(item, size, f"{key}[{index}]")
            for index, item in enumerate(objects)
            if not (isinstance(item, Mapping) and item.get("iscrowd"))
        ]
        answer = json.dumps(boxes, ensure_ascii=False)
        return {"messages": exchange(self.prompt or self.default_prompt, answer)}

    def _side(self, row: Mapping[str, Any], name: str) -> float:
        value = self.get(row, name)
        if not _is_number(value) or value <= 0:
            raise MalformedRowError(f"{self.fields[name]!r} must be pixels and is {preview(value)}")
        return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) < 1e9


def _box(item: Any, size: tuple[float, float], name: str) -> dict[str, Any]:
    """Return one object with its corners in thousandths of the image."""
    if not isinstance(item, Mapping):
        raise MalformedRowError(f"{name} must be an object and is {preview(item)}")
    label = next((item[key] for key in _LABELS if key in item), None)
    box_key = next((key for key in (*_CORNER_AND_SIZE, *_TWO_CORNERS) if key in item), None)
    numbers = item[box_key] if box_key is not None else None
    if not isinstance(numbers, list) or len(numbers) != 4 or not all(map(_is_number, numbers)):
        known_keys = ", ".join((*_CORNER_AND_SIZE, *_TWO_CORNERS))
        raise MalformedRowError(f"{name} needs a box of four numbers ({known_keys}) and has {preview(numbers)}")
    left_edge, top, right, bottom = numbers
    if box_key in _CORNER_AND_SIZE:
        right, bottom = left_edge + right, top + bottom
    width, height = size
    # Rounding may put a corner a pixel outside: it is moved to the edge. A box farther out belongs to another image.
    is_inside = left_edge >= -1 and top >= -1 and right <= width + 1 and bottom <= height + 1
    if not (left_edge <= right and top <= bottom and is_inside):
        raise MalformedRowError(f"the box of {name}, {preview(numbers)}, is outside {width:g} × {height:g} pixels")
    corners = [left_edge / width, top / height, right / width, bottom / height]
    scaled_boxes = [min(SCALE, max(0, round(SCALE * corner))) for corner in corners]
    return {"bbox_2d": scaled_boxes, "label": as_text(label, f"the label of {name}")}
