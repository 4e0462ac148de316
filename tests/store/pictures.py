"""Toy chats with pictures, and the encoder for them: a medium takes ``1 + bytes % 7`` tokens, and is never decoded."""

from pathlib import Path

import numpy as np

from brimful.encode.encoded import EncodedSample
from brimful.errors import BadSampleError
from brimful.media import BadMediumError, PlacedMedium
from brimful.testing.toys import toy_chat_encoder

PICTURE_TOKEN = 9


def picture(number, size=None):
    """Bytes that stand for a picture: equal for equal numbers."""
    size = 40 + 13 * number if size is None else size
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8).tobytes()


def write_pictures(folder, numbers, name="p{}.png"):
    """Write files of pictures; a name with a slash makes folders."""
    for number in numbers:
        path = Path(folder) / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))


def chat(text, *images):
    """A row with pictures: names of files or bytes."""
    content = "<image>" * len(images) + text
    return {
        "messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "ok"}],
        "images": [*images],
    }


class PictureEncoder(type(toy_chat_encoder())):
    """The toy encoder, with pictures before the text of their turn."""

    takes_attachments = True
    num_encoded = 0

    @property
    def budgets(self):
        return ("patches", "images")

    def attachment_sizes(self, attachments):
        return {"patches": sum(item.num_patches for item in attachments), "images": len(attachments)}

    def encode_batch(self, samples):
        type(self).num_encoded += len(samples)
        return [self._with_media(sample) for sample in samples]

    def _with_media(self, sample):
        pieces, flags, placed, media = [], [], [], iter(sample.attachments)
        count = 0
        try:
            for turn in sample.messages:
                content = turn["content"]
                parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
                for part in parts:
                    if part["type"] == "text":
                        ids = [ord(char) for char in part["text"]]
                    else:
                        medium = next(media)
                        stamp = medium.stamp()
                        ids = [PICTURE_TOKEN] * (1 + medium.num_bytes % 7)
                        placed.append(
                            PlacedMedium(
                                medium,
                                count,
                                len(ids),
                                num_tokens=len(ids),
                                num_patches=4 * len(ids),
                                grid=(1, 2, 2 * len(ids)),
                                stamp=stamp,
                            )
                        )
                    pieces += ids
                    flags += [turn["role"] == "assistant"] * len(ids)
                    count += len(ids)
        except BadMediumError as error:
            return BadSampleError(str(error), sample_id=sample.sample_id)
        return EncodedSample(np.array(pieces, dtype=np.int32), np.array(flags, dtype=bool), tuple(placed))
