"""Sizes of features before they are made, from media headers, for every distinct medium."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brimful.base.attachment import AttachmentStorage
from brimful.base.execute import Resources, run_tasks
from brimful.base.typing import Int64Array
from brimful.base.wording import setting
from brimful.encode.encoded import StoredSamples
from brimful.encode.encoded_samples import EncodedSamples
from brimful.encode.encoder import Encoder
from brimful.errors import SettingsError
from brimful.media.encode.media_chat import MediaChatEncoder
from brimful.media.feature_maker import FeatureMaker
from brimful.media.job.media_layout import MediaLayout
from brimful.media.rope_positions import rope_rule

_TASK_MEDIA = 4096
"""Media that one task measures: enough to outweigh the start of a task, few enough to show
progress.
"""


def feature_maker(encoder: Encoder, storage: AttachmentStorage) -> FeatureMaker | None:
    """Return the maker of the features of a store; None for other storages.

    Raises:
        SettingsError: an encoder without processor files.
    """
    if storage is not AttachmentStorage.FEATURES:
        return None
    family = encoder.family if isinstance(encoder, MediaChatEncoder) else None
    if family is None or family.directory is None:
        raise SettingsError(
            f"{setting('media_storage', 'features')} needs {setting('processor')}, the directory "
            "of the model's processor, which makes them"
        )
    return FeatureMaker(family.directory, family)


def feature_facts(maker: FeatureMaker) -> dict[str, Any]:
    """Return facts on features for a store: ``settings``, a fingerprint, and ``tokens_per_second``
    for positions.
    """
    rule = rope_rule(maker.family, maker.directory)
    return {
        "settings": maker.fingerprint,
        "tokens_per_second": None if rule is None else rule.tokens_per_second,
    }


def with_features(
    layout: MediaLayout,
    maker: FeatureMaker | None,
    samples: EncodedSamples,
    encoded: StoredSamples | None,
    resources: Resources,
) -> MediaLayout:
    """Return a layout with the sizes of its features; unchanged without a maker."""
    if maker is None:
        return layout
    offsets = layout.survey.offsets
    sample_ids = np.searchsorted(offsets, layout.first_uses, side="right") - 1
    indices = layout.first_uses - offsets[sample_ids]
    # In the order of samples, so that each is read once and neighbors together.
    order = np.argsort(layout.first_uses)
    tasks = [
        _SizeTask(part, sample_ids[part], indices[part])
        for begin in range(0, len(order), _TASK_MEDIA)
        for part in [order[begin : begin + _TASK_MEDIA]]
    ]
    resources = resources.for_work(is_small=encoded is not None or len(tasks) == 1)
    progress = resources.progress
    sizes = np.zeros(len(order), dtype=np.int64)
    with progress.stage("features", total=len(order), unit="media"):
        context = (maker, samples if encoded is None else encoded)
        results = run_tasks(_sizes_of, tasks, context=context, resources=resources)
        with closing(results) as pairs:
            for task, task_sizes in pairs:
                sizes[task.places] = task_sizes
                progress.advance(len(task.places))
    return replace(layout, stored_sizes=sizes, features=feature_facts(maker))


@dataclass(frozen=True)
class _SizeTask:
    """Some distinct media: their places in the layout, their samples, and their numbers in these
    samples.
    """

    places: Int64Array
    sample_ids: Int64Array
    indices: Int64Array

    def __str__(self) -> str:
        return f"sizes of features of samples {self.sample_ids[0]} … {self.sample_ids[-1]}"


def _sizes_of(
    context: tuple[FeatureMaker, EncodedSamples | StoredSamples], task: _SizeTask
) -> list[int]:
    """Return the bytes of the blocks of some media, in any process."""
    maker, samples = context
    ids: Sequence[int] = np.unique(task.sample_ids).tolist()
    media = {
        sample_id: sample.media for sample_id, sample in zip(ids, samples.read(ids), strict=True)
    }
    places = zip(task.sample_ids.tolist(), task.indices.tolist(), strict=True)
    return [maker.block_bytes(media[sample_id][index]) for sample_id, index in places]
