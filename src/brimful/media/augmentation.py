"""Transforms of images as transforms of samples."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from brimful.base.checks import check_type
from brimful.media.images import load_image
from brimful.media.medium import MediaKind, Medium
from brimful.sources.augmented import Transform, name_of
from brimful.sources.sample import Sample

if TYPE_CHECKING:
    from PIL.Image import Image


def on_pictures(transform: Callable[[Image], Image]) -> Transform:
    """Return the transform of samples that applies a transform of images to each of their images.

    Args:
        transform: from a Pillow image to another, such as the transforms of
            ``torchvision.transforms``.

    >>> from brimful.testing.toys import toy_picture
    >>> sample = Sample(0, text="", attachments=(Medium(MediaKind.IMAGE, "a", data=toy_picture(4, 6)),))
    >>> turned = on_pictures(lambda picture: picture.rotate(90, expand=True))(sample)
    >>> load_image(turned.attachments[0]).size
    (6, 4)
    """
    if not callable(transform):
        check_type("transform", transform, (), "a function from an image to an image")

    return _OnPictures(transform)


class _OnPictures:
    """Transform of the images of a sample. A class and not a nested function, so that it can be
    sent to workers.
    """

    def __init__(self, transform: Callable[[Image], Image]) -> None:
        self._transform = transform
        self.__name__ = name_of(transform)

    def __call__(self, sample: Sample) -> Sample:
        media = []
        for medium in sample.attachments:
            if medium.kind is MediaKind.IMAGE:
                file = io.BytesIO()
                self._transform(load_image(medium)).save(file, "PNG")
                medium = Medium(medium.kind, medium.name, data=file.getvalue())
            media.append(medium)
        return replace(sample, attachments=tuple(media))
