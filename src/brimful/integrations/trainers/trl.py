"""``SFTTrainer`` of TRL: packs as its data set, with its settings corrected for packs."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from brimful.base.optional import optional
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.integrations.trainers.attention import collator_for
from brimful.integrations.trainers.one_file import packs_of_file
from brimful.integrations.trainers.refused_settings import check_arguments
from brimful.store.shards import Pack, PackSequence

with optional("datasets", "trl", "SFTPacks"):
    import datasets

__all__ = ["SFTPacks", "for_packs", "packed_for_trl"]

_Arguments = TypeVar("_Arguments")


class SFTPacks(datasets.Dataset):  # type: ignore[misc]  # datasets is not typed here
    """Data set of packs for ``SFTTrainer``: a ``datasets.Dataset`` that holds no tokens itself.

    TRL takes no other class, and reads the keys of the first sample to tell conversations and
    images from tokens. Iterating gives rows as in TRL's own packed data set, with ``seq_lengths``;
    indexing, as in training, gives the packs. ``PackCollator`` takes both. The results of
    ``select`` or ``shuffle`` are not data sets of packs, and ``PackCollator`` refuses them;
    ``map``, which TRL calls to tokenize or pack, is refused.

    Args:
        packs: a ``PackedDataset``, a ``PackStore``, or ``one_by_one`` of either.

    >>> from brimful.testing.toys import toy_packs
    >>> packs = SFTPacks(toy_packs(3))
    >>> "prompt" in next(iter(packs)), packs[2].sample_ids.tolist(), len(packs)
    (False, [2], 3)
    """

    def __init__(self, packs: PackSequence) -> None:
        if not len(packs):
            raise SettingsError("SFTTrainer needs at least one pack, and the data set is empty")
        # A table of one cell satisfies the base class; length and items come from the packs.
        super().__init__(datasets.Dataset.from_dict({"pack": [None]}).data)
        self._packs = packs

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, key: Any) -> Pack:
        return self._packs[int(key)]

    def __getitems__(self, keys: Sequence[int]) -> list[Pack]:
        # Packs that are encoded on the fly are encoded together.
        get_items = getattr(self._packs, "__getitems__", None)
        return (
            [self[key] for key in keys]
            if get_items is None
            else list(get_items([int(key) for key in keys]))
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self)):
            # TRL's rows have no words for trees.
            pack = self[index].flat()
            yield {
                "input_ids": pack.input_ids.tolist(),
                "labels": pack.labels.tolist(),
                "seq_lengths": np.diff(pack.cu_seqlens).tolist(),
            }

    def map(self, *arguments: Any, **options: Any) -> Any:
        raise SettingsError(
            "SFTTrainer prepares its data set, and SFTPacks are prepared: pass the SFTConfig "
            "through for_packs(args)"
        )

    def __repr__(self) -> str:
        return f"SFTPacks({self._packs!r})"


def packed_for_trl(
    model: Any, tokenizer: Any, source: Any, args: Any, **options: Any
) -> dict[str, Any]:
    """Return the arguments of ``SFTTrainer`` that train a model on the packed rows of a file.

    ::

        SFTTrainer(**packed_for_trl(model, tokenizer, "chats.jsonl", SFTConfig("out", max_length=4096)))

    Args:
        model: of Transformers, loaded; it is switched to an attention that isolates samples
            (``collator_for``).
        tokenizer: of the model.
        source: anything that ``open_source`` takes.
        args: an ``SFTConfig``, which ``for_packs`` changes. Its ``max_length`` is the capacity of
            the packs, and its ``dataset_num_proc`` the number of processes that measure.
        **options: ``train_on``, ``overflow``, ``no_target``, see ``packs_of_file``.

    Returns:
        ``model``, ``args``, ``train_dataset``, ``data_collator`` and ``processing_class``.

    Raises:
        SettingsError: an ``SFTConfig`` without ``max_length``, or a setting that is wrong with
            packs (``check_arguments``).
        BrimfulError: see ``packs_of_file``.
    """
    args = for_packs(args)
    if args.max_length is None:
        raise SettingsError(
            f"{setting('max_length')} of the SFTConfig is None: set it to the tokens of a pack"
        )
    options = {"max_length": args.max_length, "num_proc": args.dataset_num_proc, **options}
    return {
        "model": model,
        "args": args,
        "data_collator": collator_for(model, device=args.device),
        "train_dataset": SFTPacks(packs_of_file(source, tokenizer, **options)),
        "processing_class": tokenizer,
    }


def for_packs(args: _Arguments) -> _Arguments:
    """Change an ``SFTConfig`` so that TRL does not change packs, and return it.

    It sets ``dataset_kwargs["skip_prepare_dataset"]`` and ``remove_unused_columns=False``;
    ``max_length`` then has no effect, because the capacity of the packs is the length of a row.
    ``per_device_train_batch_size`` counts packs.

    Raises:
        SettingsError: a setting that is wrong with packs (``check_arguments``).
    """
    check_arguments(args, trainer="trl")
    options: Any = args
    options.dataset_kwargs = {**(options.dataset_kwargs or {}), "skip_prepare_dataset": True}
    options.remove_unused_columns = False
    return args
