"""Boxes as text: thousandths of the picture, whatever its size becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brimful.errors import BadSampleError
from brimful.sources import open_source


def row(*objects: Any, **columns: Any) -> dict[str, Any]:
    return {"image": "a.jpg", "width": 200, "height": 100, "objects": list(objects), **columns}


def result(given: Any, **options: Any) -> Any:
    (found,) = open_source([given], media=True, **options).read(0, 1)
    return found.reason if isinstance(found, BadSampleError) else found.messages[1]["content"]


@pytest.mark.parametrize(
    "item",
    [
        {"label": "cat", "bbox": [20, 10, 100, 50]},
        {"category": "cat", "bbox_xywh": [20.0, 10.0, 100.0, 50.0], "iscrowd": 0},
        {"name": "cat", "bbox_2d": [20, 10, 120, 60]},
        {"label": "cat", "bbox_xyxy": [20, 10, 120, 60]},
    ],
)
def test_boxes_of_all_spellings_are_one(item: Any) -> None:
    """A box that is read as two corners instead of corner and size trains another place."""
    assert result(row(item)) == '[{"bbox_2d": [100, 100, 600, 600], "label": "cat"}]'


def test_the_order_stays_and_crowds_are_left_out() -> None:
    """Six objects in, five out; none is an answer too."""
    objects = [{"label": f"{number}", "bbox": [number, 0, 1, 1], "iscrowd": int(number == 3)} for number in range(6)]
    assert [item["label"] for item in json.loads(result(row(*objects)))] == ["0", "1", "2", "4", "5"]
    assert result(row()) == "[]"


def test_the_prompt_is_documented_and_the_users() -> None:
    """One turn of the user, after the picture."""
    sample = open_source([row()], media=True)[0]
    parts = [
        {"type": "image"},
        {"type": "text", "text": "\nDetect all objects in this image. Answer with their boxes as JSON."},
    ]
    assert sample.messages[0]["content"] == parts
    assert open_source([row()], media=True, prompt="Boxes?")[0].messages[0]["content"][1]["text"] == "\nBoxes?"


@pytest.mark.parametrize("side", range(4))
def test_a_corner_a_pixel_outside_is_moved_to_the_edge_and_one_farther_out_is_refused(side: int) -> None:
    """Rounding moves each of four corners by a pixel; boxes of another picture would be trained on this one."""
    box = [20, 10, 120, 60]
    edges, out = (0, 0, 200, 100), (-1, -1, 1, 1)[side]
    for outside in (0, 1, 2):
        box[side] = edges[side] + out * outside
        found = result(row({"label": "cat", "bbox_2d": box}))
        if outside < 2:
            expected = [100, 100, 600, 600]
            expected[side] = (0, 0, 1000, 1000)[side]
            assert json.loads(found) == [{"bbox_2d": expected, "label": "cat"}]
        else:
            assert "is outside 200 × 100 pixels" in found


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (row({"label": "cat"}), "objects[0] needs a box of four numbers (bbox, bbox_xywh, bbox_2d, bbox_xyxy) and has NoneType null"),
        (row({"label": "cat", "bbox": [1, 2, 3]}), "objects[0] needs a box of four numbers"),
        (row({"label": "cat", "bbox": [1, 2, True, 3]}), "objects[0] needs a box of four numbers"),
        (row({"bbox": [1, 2, 3, 4]}), "the label of objects[0] must be text and is NoneType null"),
        (row({"label": "cat", "bbox": [150, 0, 100, 10]}), "the box of objects[0], list [150, 0, 100, 10], is outside 200 × 100 pixels"),
        (row({"label": "cat", "bbox_2d": [50, 0, 10, 10]}), "the box of objects[0]"),
        (row("cat"), "objects[0] must be an object and is str \"cat\""),
        ({**row(), "objects": "cat"}, "'objects' must be a list of objects"),
        (row(width=0), "'width' must be pixels and is int 0"),
    ],
)  # fmt: skip
def test_what_is_no_box_is_refused(given: Any, reason: str) -> None:
    """A box outside of its picture belongs to another one."""
    assert result(given, format="detection").startswith(reason)


def test_real_boxes(data_dir: Any) -> None:
    """COCO: captions by themselves, boxes if they are asked for."""
    path = data_dir / "multimodal" / "coco" / "coco.jsonl"
    assert open_source(path, media=True).format_name == "caption"
    source = open_source(path, media=True, format="detection")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for sample, given in zip(source.read(0, len(source)), rows, strict=True):
        assert not isinstance(sample, BadSampleError)
        boxes = json.loads(sample.messages[1]["content"])
        objects = [item for item in given["objects"] if not item["iscrowd"]]
        assert [box["label"] for box in boxes] == [item["category"] for item in objects]
        for box, item in zip(boxes, objects, strict=True):
            left, top, width, height = item["bbox_xywh"]
            corners = [left / given["width"], top / given["height"]]
            corners += [(left + width) / given["width"], (top + height) / given["height"]]
            assert box["bbox_2d"] == pytest.approx([1000 * corner for corner in corners], abs=0.51)
