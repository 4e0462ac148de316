"""Formats of rows of a medium and its text: captions, transcripts, boxes of objects."""

import json
from collections.abc import Mapping
from typing import Any

from brimful.base.checks import MalformedRowError
from brimful.sources.attachment_names import COLUMNS, MARK
from brimful.sources.formats.conversation import as_text, preview
from brimful.sources.formats.row_format import RowFormat, register
from brimful.sources.sample import Message, exchange

_FIRST = "Describe this {kind}."
_FURTHER = "Describe it in other words."
_DEFAULT_KIND = "image"


class Caption(RowFormat):
    """``{"image": …, "caption": …}``, or ``"captions": [ … ]`` with several of them.

    One row is one sample. The user asks for a description, the caption is the answer; further
    captions of a medium become further turns of the same chat, so that the medium costs its tokens
    only once. With ``per_turn`` each caption is a sample that answers the first turn, and all of
    them have the same medium. A caption is a text or ``{"content": text}``.

    >>> row = {"image": "a.jpg", "captions": ["A cat.", {"content": "A cat on a mat."}]}
    >>> [message["content"] for message in Caption().convert(row)["messages"]]
    ['Describe this image.', 'A cat.', 'Describe it in other words.', 'A cat on a mat.']
    """

    name = "caption"
    default_fields = {"caption": "caption", "captions": "captions", "prompt": "prompt"}
    required_fields = ("caption",)
    answers_are_alternatives = True
    default_prompt = _FIRST
    puts_attachments_first = True

    def matches(self, row: Any) -> bool:
        if (
            not isinstance(row, Mapping)
            or isinstance(row.get(self.fields["prompt"]), list)
            or "prompts" in row
        ):
            return False  # a pack of several samples also has a list of prompts
        return any(self.fields[name] in row for name in ("caption", "captions"))

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        captions = self._captions(row)
        asked = self.optional(row, "prompt")
        prompt = self.text(row, "prompt") if asked else self.prompt
        kind = next(
            (COLUMNS[column] for column in row if column in COLUMNS and row[column]),
            None,
        )
        first, further = prompt or _FIRST.format(kind=kind or _DEFAULT_KIND), _FURTHER
        if prompt:
            # The medium belongs to the first turn only, wherever the prompt marks it.
            further = MARK.sub("", prompt).strip()
        messages: list[Message] = []
        for text, caption in zip([first, *[further] * (len(captions) - 1)], captions, strict=True):
            messages += exchange(text, caption)
        return {"messages": messages}

    def _captions(self, row: Mapping[str, Any]) -> list[str]:
        """Return the captions of a row, at least one."""
        single, several = self.optional(row, "caption"), self.optional(row, "captions")
        if single and several:
            raise MalformedRowError(
                f"it has {self.fields['caption']!r} and {self.fields['captions']!r}: keep one of "
                "them"
            )
        name = self.fields["captions" if several else "caption"]
        values = several if isinstance(several, list) and several else [several or single]
        captions = [
            value.get("content") if isinstance(value, Mapping) else value for value in values
        ]
        for value, caption in zip(values, captions, strict=True):
            if not isinstance(caption, str) or not caption.strip():
                raise MalformedRowError(f"{name!r} must hold texts and holds {preview(value)}")
        return captions  # type: ignore[return-value]


_TRANSCRIPT_NAMES = ("transcript", "transcription", "sentence", "text")


class Transcript(RowFormat):
    """``{"audio": …, "transcript": …}``; the words may also be under ``transcription``,
    ``sentence`` or ``text``.

    The user asks for the words, the transcript is the answer.

    >>> Transcript().convert({"audio": "a.flac", "text": "Hello."})["messages"][1]["content"]
    'Hello.'
    """

    name = "transcript"
    default_fields = {name: name for name in _TRANSCRIPT_NAMES}
    required_fields = ("transcript",)
    default_prompt = "Write down what is said."
    puts_attachments_first = True

    def matches(self, row: Any) -> bool:
        if not isinstance(row, Mapping) or not any(
            self.fields[name] in row for name in _TRANSCRIPT_NAMES
        ):
            return False
        return any(COLUMNS.get(column) == "audio" and value for column, value in row.items())

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for name in _TRANSCRIPT_NAMES if self.optional(row, name)]
        if not names:
            key = next(
                (self.fields[name] for name in _TRANSCRIPT_NAMES if self.fields[name] in row),
                self.fields["transcript"],
            )
            raise MalformedRowError(
                f"{key!r} is empty" if key in row else f"field {key!r} is missing"
            )
        if len(names) > 1:
            keys = ", ".join(repr(self.fields[name]) for name in names)
            raise MalformedRowError(f"it has several transcripts ({keys}): keep one of them")
        answer = self.text(row, names[0])
        return {"messages": exchange(self.prompt or self.default_prompt, answer)}


SCALE = 1000
"""Units along each side of an image: coordinates do not depend on the size to which a processor
resizes it.
"""

_CORNER_AND_SIZE = ("bbox", "bbox_xywh")
_TWO_CORNERS = ("bbox_2d", "bbox_xyxy")
_LABELS = ("label", "category", "name")


class Detection(RowFormat):
    """``{"image": …, "width": …, "height": …, "objects": [{"label": …, "bbox": [x, y, width,
    height]}, …]}``.

    The answer is JSON: ``[{"bbox_2d": [x1, y1, x2, y2], "label": …}, …]``, corners from 0 to 1000
    along each side, as Qwen-VL and InternVL write them. In the row they are pixels: ``bbox`` or
    ``bbox_xywh`` as in COCO, ``bbox_2d`` or ``bbox_xyxy`` as two corners; the label is ``label``,
    ``category`` or ``name``. The order of the objects stays. COCO's crowds (``iscrowd``) are not
    single objects and are left out.

    >>> row = {"width": 200, "height": 100, "objects": [{"label": "cat", "bbox": [20, 10, 100, 50]}]}
    >>> Detection().convert(row)["messages"][1]["content"]
    '[{"bbox_2d": [100, 100, 600, 600], "label": "cat"}]'
    """

    name = "detection"
    default_fields = {"objects": "objects", "width": "width", "height": "height"}
    required_fields = ("objects", "width", "height")
    default_prompt = "Detect all objects in this image. Answer with their boxes as JSON."
    puts_attachments_first = True

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
        if not _is_real(value) or value <= 0:
            raise MalformedRowError(f"{self.fields[name]!r} must be pixels and is {preview(value)}")
        return float(value)


def _is_real(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) < 1e9  # NaN is not
    )


def _box(item: Any, size: tuple[float, float], name: str) -> dict[str, Any]:
    """Return one object with its corners in thousandths of the image."""
    if not isinstance(item, Mapping):
        raise MalformedRowError(f"{name} must be an object and is {preview(item)}")
    label = next((item[key] for key in _LABELS if key in item), None)
    box_key = next((key for key in (*_CORNER_AND_SIZE, *_TWO_CORNERS) if key in item), None)
    coordinates = item[box_key] if box_key is not None else None
    if (
        not isinstance(coordinates, list)
        or len(coordinates) != 4
        or not all(map(_is_real, coordinates))
    ):
        known_keys = ", ".join((*_CORNER_AND_SIZE, *_TWO_CORNERS))
        raise MalformedRowError(
            f"{name} needs a box of four numbers ({known_keys}) and has {preview(coordinates)}"
        )
    left_edge, top, right, bottom = coordinates
    if box_key in _CORNER_AND_SIZE:
        right, bottom = left_edge + right, top + bottom
    width, height = size
    # Rounding may put a corner a pixel outside: it is moved to the edge. A box farther out belongs
    # to another image.
    is_inside = left_edge >= -1 and top >= -1 and right <= width + 1 and bottom <= height + 1
    if not (left_edge <= right and top <= bottom and is_inside):
        raise MalformedRowError(
            f"the box of {name}, {preview(coordinates)}, is outside {width:g} × {height:g} pixels"
        )
    corners = [left_edge / width, top / height, right / width, bottom / height]
    scaled_boxes = [min(SCALE, max(0, round(SCALE * corner))) for corner in corners]
    return {"bbox_2d": scaled_boxes, "label": as_text(label, f"the label of {name}")}


register(Caption, Detection, Transcript)
