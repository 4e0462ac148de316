"""Collator from packs to the tensors of a trainer."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch  # noqa: F401  imported so that a missing torch is an error immediately, not at the first batch

from brimful.base.arguments import understands
from brimful.base.checks import check_type
from brimful.base.sharing import SHARING, wing_of
from brimful.base.typing import IGNORE_INDEX, Float32Array
from brimful.base.wording import setting
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects import DIALECTS, dialect_of
from brimful.collate.extras import PackExtras
from brimful.collate.features import Feature, as_packs, check_vocabulary
from brimful.collate.layout import lay_out
from brimful.collate.loss import Normaliser, token_weights
from brimful.collate.padding import Padding
from brimful.collate.row_writer import writer
from brimful.errors import CollateError, SettingsError
from brimful.store.shards import Pack

__all__ = ["PackCollator"]

_BRANCH, _SHARED_TARGETS = "fork", "sum"
"""Defaults of the loss of packs whose samples share: ``LossForm`` of ``base.sharing.wing_of``."""

_LIBRARIES = ("transformers.", "trl.")
"""Modules of libraries whose own losses ignore weights."""

NO_WEIGHTS = "call brimful.integrations.trainers.use_loss_weights(trainer)"
"""Way out for a trainer whose loss ignores weights."""


class PackCollator:
    """Collator from packs to the batch of a trainer.

    By default a batch is the keyword arguments of a Transformers model. Several packs are flattened
    into one row, or become one row each if the dialect has rows. Plain samples (mappings with
    ``input_ids``, and ``labels`` if not all tokens are targets) are accepted like packs, so this
    also replaces ``DataCollatorWithFlattening``; a row of several samples is split by its
    ``seq_lengths``, ``position_ids`` or numbered ``attention_mask``. A list of samples in the
    batch, as ``PackedDataset.wrap`` returns it, is one pack. ``serve.tokenized.read_tokenized``
    lists the keys of a plain sample, and the keys that it refuses.

    Args:
        dialect: name of the trainer's batch format; ``docs/dialects.md`` lists all with their keys,
            dtypes and shapes.
        pad_to: fixed length of the row, for compiled models: shorthand for
            ``padding=Padding(to=…)``.
        padding: padding policy for rows and segments; no padding if None.
        pad_token_id: token of the padding.
        vocab_size: refuse token ids outside the vocabulary; not checked if None.
        loss_weights: weight of each target: name of a normalizer (``"sample"``, ``"sqrt"``, as in
            ``collate.loss``), or a function from a batch to ``float32[T]``; None for 1. Of trees it
            sees the samples as a flat row.
        position_start: position of the first token of a segment, such as 2 for RoBERTa.
        mrope: give batches of text four rows of positions too: text first, then time, height and
            width. Models with such positions (Qwen2-VL and similar) need them to isolate samples.
            Without it, attention crosses samples in packs of text in such a model.
        branch: form of the loss of trees, at the branches of a trunk. ``"fork"``: each branch
            repeats the last token of its trunk, so that labels stay one for each token. ``"index"``:
            the batch names the place that predicts each target. ``trees.collate.branch.Branch``
            explains both.
        shared_targets: weight of a target of a tree that several samples train: ``"sum"`` of their
            weights, as in flat packs; or their ``"mean"``, so that it counts once.
        media: makes the pixels, spectrograms and positions of packs with media:
            ``media.collate.MediaFeatures``. For plain samples, which already have features, it
            makes the positions.

    >>> import numpy as np
    >>> from brimful.testing.toys import toy_pack
    >>> batch = PackCollator(pad_to=8)([toy_pack([4, 2])])
    >>> batch["cu_seq_lens_q"].tolist(), batch["position_ids"].tolist()
    ([0, 4, 6, 8], [[0, 1, 2, 3, 0, 1, 0, 1]])
    >>> batch = PackCollator(dialect="llama_factory", pad_to=7)([toy_pack([4, 2])])
    >>> batch["attention_mask"].tolist()
    [[1, 1, 1, 1, 2, 2, 0, 0]]
    """

    @understands()
    def __init__(
        self,
        *,
        dialect: str = "transformers",
        pad_to: int | None = None,
        padding: Padding | None = None,
        pad_token_id: int = 0,
        vocab_size: int | None = None,
        loss_weights: Callable[[PackedBatch], Float32Array] | str | None = None,
        position_start: int = 0,
        mrope: bool = False,
        branch: str = _BRANCH,
        shared_targets: str = _SHARED_TARGETS,
        media: Callable[[Pack], PackExtras] | None = None,
    ) -> None:
        self.dialect = dialect_of(dialect)
        if pad_to is not None and padding is not None:
            raise SettingsError(
                f"pad_to={pad_to} and padding={padding} contradict each other: use "
                "padding=Padding(to=…)"
            )
        self.padding = padding or Padding(to=pad_to)
        self.pad_token_id = pad_token_id
        self._vocab_size = vocab_size
        if isinstance(loss_weights, str):
            # A partial of a module-level function, not a lambda, so that workers of a loader can be
            # spawned.
            loss_weights = partial(_token_weights, normaliser=Normaliser.named(loss_weights))
        self._loss_weights = loss_weights
        self._position_start = position_start
        self._mrope = mrope
        self._loss_form = branch, shared_targets
        if self._loss_form != (_BRANCH, _SHARED_TARGETS):
            for kind in SHARING:
                wing_of(kind).LossForm(*self._loss_form)
        self.media = media
        if position_start and not self.dialect.any_start:
            raise SettingsError(
                f"position_start={position_start} does not go with dialect {self.dialect.name!r}, "
                "whose trainer takes position 0 for the beginning of a segment"
            )
        if vocab_size is not None and not 0 <= pad_token_id < vocab_size:
            raise SettingsError(
                f"pad_token_id is {pad_token_id} and the vocabulary is 0 … {vocab_size - 1}"
            )
        if self.dialect.row_per_sample:
            for field in ("num_segments", "max_seqlen"):
                if (value := getattr(self.padding, field)) is not None:
                    raise SettingsError(
                        f"{setting(field, value)} does not go with dialect {self.dialect.name!r}, "
                        "whose batches have no boundaries: each sample is a row"
                    )
        self._ignores_weights = False
        self._convert = self.dialect.load()
        # Load compiled code now, not in the first step, and not in each worker that is forked
        # later.
        writer()

    def __repr__(self) -> str:
        return f"PackCollator(dialect {self.dialect.name}, {self.padding!r})"

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker has no trainer on its stack.
        return {**vars(self), "_ignores_weights": _asked_by_own_loss()}

    def __call__(self, features: Sequence[Feature]) -> dict[str, Any]:
        """Return one batch; the packs are not changed.

        Raises:
            CollateError: nothing to collate, missing or unsupported keys, ids outside the
                vocabulary, or more tokens than ``pad_to``.
        """
        return self.convert(self.rows(features))

    def convert(self, rows: Sequence[PackedBatch]) -> dict[str, Any]:
        """Convert the result of ``rows`` to the dialect.

        Raises:
            CollateError: packs whose samples share, and a dialect that would take their segments
                for samples.
            SettingsError: weights that are not 1, for a trainer whose loss ignores them.
        """
        convert = self._convert
        sharing = next((batch.sharing for batch in rows if batch.sharing is not None), None)
        if sharing is not None:
            wing = wing_of(sharing)
            if not self.dialect.takes_sharing:
                others = [name for name, entry in DIALECTS.items() if entry.takes_sharing]
                raise wing.refusal(self.dialect.name, ", ".join(others))
            convert = self.dialect.load(wing.DIALECTS)
        _refuse_ignored_weights(rows, self._ignores_weights)
        if self.dialect.row_per_pack:
            return convert(rows)
        (batch,) = rows
        if not self.dialect.row_per_sample:
            return convert(batch)
        longest = int(batch.real_lengths.max())
        length = self.padding.row_length(longest)
        if length < longest:
            raise CollateError(
                f"{setting('pad_to')} is {length:,} and sample "
                f"{batch.sample_ids[int(batch.real_lengths.argmax())]} has {longest:,} tokens: "
                "raise it to the longest sample"
            )
        return self._convert(batch, length=length, pad_token_id=self.pad_token_id)

    def rows(self, features: Sequence[Feature]) -> list[PackedBatch]:
        """Lay out a batch before the dialect: one ``PackedBatch``, or one per pack, equally long,
        for dialects with rows.

        If each sample is a row in the dialect, the one ``PackedBatch`` has no padding.
        """
        if isinstance(features, (Pack, Mapping)) or not isinstance(features, Sequence):
            check_type(
                "a batch",
                features,
                (),
                "a list of packs or samples",
                "one of them goes in a list too",
            )
        if not features:
            raise CollateError("a batch needs at least one pack and got none")
        # A list is one pack of several items: single packs, or samples that another library
        # encoded.
        groups = [
            feature
            if isinstance(feature, list) and feature and not isinstance(feature[0], int)
            else [feature]
            for feature in features
        ]
        items = [item for group in groups for item in group]
        packs, extras = as_packs(items, position_start=self._position_start, maker=self.media)
        ids = [
            sample_id
            for group in groups
            for sample_id in getattr(group, "sample_ids", [None] * len(group))
        ]
        packs = [
            pack if id is None else replace(pack, sample_ids=np.full_like(pack.sample_ids, id))
            for pack, id in zip(packs, ids, strict=True)
        ]
        if self._vocab_size is not None:
            check_vocabulary(packs, self._vocab_size)
        form = None
        # The layout refuses a batch of packs whose samples share and of other packs.
        if packs[0].sharing is not None:
            form = wing_of(packs[0].sharing).LossForm(*self._loss_form)
            packs, extras = form.prepare(packs, extras)
        rows, padding = [slice(None)], Padding() if self.dialect.row_per_sample else self.padding
        if self.dialect.row_per_pack:
            rows = [slice(*pair) for pair in pairwise(accumulate(map(len, groups), initial=0))]
            padding = self._row_padding([packs[row] for row in rows])
        batches = [
            lay_out(
                packs[row],
                padding=padding,
                extras=None if extras is None else extras[row],
                pad_token_id=self.pad_token_id,
                position_start=self._position_start,
            )
            for row in rows
        ]
        # Positions before weights: a function for weights sees the rest of the batch in its final
        # form.
        if self._mrope:
            batches = [
                replace(batch, rope_positions=batch.position_rows(3))
                if batch.rope_positions is None
                else batch
                for batch in batches
            ]
        if self._loss_weights is not None:
            weigh = self._loss_weights
            if form is not None:
                weigh = partial(form.summed_weights, weigh=weigh)
            batches = [replace(batch, loss_weights=weigh(batch)) for batch in batches]
        for batch in batches:
            _check_weights(batch)
        return batches if form is None else [form.apply(batch) for batch in batches]

    def _row_padding(self, rows: Sequence[Sequence[Pack]]) -> Padding:
        """Return padding that gives all rows the length of the longest, plus the dialect's spare
        tokens.
        """
        # The length of the longest row includes the gaps after its segments.
        longest = max(
            sum(int(self.padding.padded(np.diff(pack.cu_seqlens)).sum()) for pack in row)
            for row in rows
        )
        size = self.padding.row_length(longest)
        if longest > size:
            return self.padding  # too small: the layout of that pack raises the error
        unit = self.padding.unit
        return replace(self.padding, to=-(-(size + self.dialect.spare_tokens) // unit) * unit)


def _check_weights(batch: PackedBatch) -> None:
    """Refuse weights, given by hand or by a function, of which a loss would be NaN or turn round."""
    if batch.loss_weights is None:
        return
    weights = batch.target_weights
    invalid = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if len(invalid):
        raise CollateError(
            f"token {invalid[0]:,} of the row has the loss weight {weights[invalid[0]]}: weights "
            "must be finite and at least 0"
        )


def _token_weights(batch: PackedBatch, *, normaliser: Normaliser) -> Float32Array:
    return token_weights(batch.labels, batch.cu_seqlens, batch.num_segments, normaliser)


def _asked_by_own_loss() -> bool:
    """Return true if a trainer asks for a batch whose loss is the one of its library; false for any
    other trainer, and for a loop.

    A collator does not know who gets its batch, and weights are the business of a loop. But a
    trainer is on the stack where batches are made: in its process, in a worker that it forked, and
    where its collator is pickled for a worker that it spawns.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_LIBRARIES):
            loss = getattr(frame.f_locals.get("self"), "compute_loss", None)
            if loss is not None:
                return str(loss.__module__).startswith(_LIBRARIES)
        frame = frame.f_back
    return False


def _refuse_ignored_weights(rows: Sequence[PackedBatch], is_ignored: bool) -> None:
    """Refuse targets with weights other than 1 for a trainer whose loss ignores them.

    Args:
        rows: of a batch; with terms of the loss they have no labels, and no loss of a library.
        is_ignored: known of the trainer that spawned this process; if false, the stack is searched.

    Raises:
        SettingsError: names the way out.
    """
    is_weighted = any(
        batch.loss_weights is not None
        and batch.loss_terms is None
        and (batch.loss_weights[batch.labels != IGNORE_INDEX] != 1).any()
        for batch in rows
    )
    if is_weighted and (is_ignored or _asked_by_own_loss()):
        raise SettingsError(
            f"the batch has loss_weights, and the loss of the trainer ignores them: {NO_WEIGHTS}"
        )
