"""Streams of packs in ms-swift: ``--sharded_lazy true --sharded_lazy_pre_packed true`` with ``--dataset STREAM``.

ms-swift knows none of these flags. It imports plugins while it makes its arguments, and refuses afterwards what it could not
read. So they are read from the command line there, and whatever else is left over is refused as before.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from brimful.checks import check_type
from brimful.collate.media_features import MediaFeatures
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.serve import LazyShardedDataset
from brimful.shards import Pack

__all__ = ["SwiftStream", "install_stream_flags", "take_flags"]

_YES, _NO = ("true", "1", "yes"), ("false", "0", "no")


class SwiftStream:
    """Packs of a stream as encoded rows of ms-swift, by global number, finished or growing.

    Attributes:
        packs: the stream.

    Args:
        packs: as of ``LazyShardedDataset``, with the packs of a global batch as ``lanes``.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> rows = SwiftStream(LazyShardedDataset(toy_stream(tempfile.mkdtemp(), [2])))
    >>> row = rows[1]
    >>> row["length"] == len(row["input_ids"]), row["position_ids"][:2], len(rows)
    (True, [0, 1], 2)
    """

    def __init__(self, packs: LazyShardedDataset) -> None:
        check_type("packs", packs, LazyShardedDataset, "a LazyShardedDataset")
        self.packs = packs

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        pack = self.packs[index]
        return _row(pack) if self.packs.media_settings is None else {"pack": pack}

    def __repr__(self) -> str:
        return f"SwiftStream({self.packs!r})"


class MediaCollator:
    """Collator of packs with media, in the place of a template's: ms-swift's leaves out the features of what is packed.

    Batches are those of Transformers, whose position ids keep samples apart with every attention.

    Args:
        packs: the stream, which knows how its media were encoded.
        model: directory of the model, with its processor.
    """

    def __init__(self, packs: LazyShardedDataset, model: str) -> None:
        self._collate = PackCollator(media=MediaFeatures.of_packs(packs, model))

    def __call__(self, rows: Sequence[dict[str, Any]], *, padding_to: int | None = None) -> dict[str, Any]:
        return self._collate([row["pack"] for row in rows])


def _row(pack: Pack) -> dict[str, Any]:
    lengths = np.diff(pack.cu_seqlens)
    return {
        "input_ids": pack.input_ids.tolist(),
        "labels": pack.labels.tolist(),
        "position_ids": (np.arange(len(pack)) - np.repeat(pack.cu_seqlens[:-1], lengths)).tolist(),
        "length": len(pack),
    }


def take_flags(argv: Sequence[str]) -> tuple[dict[str, bool], list[str]]:
    """Return the flags of a stream on a command line, and the other arguments.

    Raises:
        SettingsError: a value that is neither true nor false.

    >>> take_flags(["--sharded_lazy", "true", "--model", "m"])
    ({'sharded_lazy': True, 'sharded_lazy_pre_packed': False}, ['--model', 'm'])
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    names = ("sharded_lazy", "sharded_lazy_pre_packed")
    for name in names:
        # As ms-swift reads booleans: the flag alone is true.
        parser.add_argument(f"--{name}", nargs="?", const="true", default="false")
    parser.add_argument("--sharded_lazy_samples_per_chunk")
    values, others = parser.parse_known_args(list(argv))
    if values.sharded_lazy_samples_per_chunk is not None:
        logging.getLogger("brimful").warning(
            "--sharded_lazy_samples_per_chunk changes nothing: the log of a stream says how many packs a shard has"
        )
    return {name: _boolean(name, getattr(values, name)) for name in names}, others


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in (*_YES, *_NO):
        raise SettingsError(f"--{name} {text}: use true or false")
    return text.lower() in _YES


def install_stream_flags() -> None:
    """Let ms-swift's arguments and pipelines take the flags of a stream. A second call changes nothing."""
    arguments = import_module("swift.arguments.base_args.base_args").BaseArguments
    pipeline = import_module("swift.pipelines.train.sft").SwiftSft
    if getattr(arguments, "_takes_streams", False):
        return
    # The first method behind the import of plugins, of every kind of arguments.
    behind_plugins, prepare_dataset = arguments._init_model_kwargs, pipeline._prepare_dataset

    def init_model_kwargs(args: Any) -> None:
        _read_flags(args)
        behind_plugins(args)

    def prepare(self: Any, *values: Any, **options: Any) -> Any:
        if not getattr(self.args, "_streams_packs", False):
            return prepare_dataset(self, *values, **options)
        # Rows of one micro-batch are flattened by the template, with the positions that they have.
        self.template.packing = self.template.padding_free = True
        stream = _stream_of(self.args)
        if stream.packs.media_settings is not None:
            _take_media(self.template, stream.packs, self.args)
        return [stream, None]

    arguments._init_model_kwargs, pipeline._prepare_dataset = init_model_kwargs, prepare
    arguments._takes_streams = True


def _read_flags(args: Any) -> None:
    """Read the flags from the command line, and hold them against the arguments.

    Raises:
        SettingsError: arguments that do not go with a stream, or that nobody knows.
    """
    command = os.environ.get("RAY_SWIFT_ARGS")
    flags, others = take_flags(json.loads(command) if command else sys.argv[1:])
    if not any(flags.values()):
        return
    _refuse_contradictions(args, flags)
    unknown = _unknown_to_swift(type(args), others)
    if unknown:
        raise SettingsError(f"ms-swift does not know {' '.join(unknown)}")
    args._streams_packs = True
    # Only the flags of streams are left over now, which ms-swift would refuse.
    args.ignore_args_error = True


def _unknown_to_swift(kind: type, argv: Sequence[str]) -> list[str]:
    """Return what the parser of ms-swift's arguments leaves over."""
    from transformers import HfArgumentParser

    with import_module("swift.utils.utils")._patch_get_type_hints():
        return list(HfArgumentParser([kind]).parse_known_args(list(argv))[1])


def _refuse_contradictions(args: Any, flags: dict[str, bool]) -> None:
    if not flags["sharded_lazy"]:
        raise SettingsError("--sharded_lazy_pre_packed true goes with --sharded_lazy true")
    if not flags["sharded_lazy_pre_packed"]:
        raise SettingsError(
            "--sharded_lazy true reads packs: make them of raw rows with `brimful produce ROWS -o STREAM`, and set "
            "--sharded_lazy_pre_packed true"
        )
    if args.packing:
        raise SettingsError("--packing true would pack again what is packed: set --packing false")
    if args.streaming:
        raise SettingsError("--streaming true reads everything on rank 0: set --streaming false")
    if getattr(args, "rlhf_type", None):
        raise SettingsError("--sharded_lazy true is for `swift sft`, `swift pt` and `megatron sft`")
    if len(args.dataset) != 1 or args.val_dataset or args.cached_dataset:
        raise SettingsError("--sharded_lazy true reads one stream: --dataset STREAM, without others to evaluate on")
    if getattr(args, "attn_impl", None) not in (None, "sdpa", "eager", "flex_attention") and not str(
        args.attn_impl
    ).startswith("flash_att"):
        raise SettingsError(
            f"--attn_impl {args.attn_impl} does not see packs: use sdpa, flex_attention or flash_attention_2"
        )


def _take_media(template: Any, packs: LazyShardedDataset, args: Any) -> None:
    """Give a template the collator of packs with media.

    Raises:
        SettingsError: a trainer that divides batches by itself, and would leave features out.
    """
    if getattr(template, "use_megatron", False) or getattr(args, "sequence_parallel_size", 1) > 1:
        raise SettingsError(
            f"{packs.directory} holds media, which `swift sft` and `swift pt` take, with --sequence_parallel_size 1"
        )
    template.data_collator = MediaCollator(packs, args.model_dir)


def _stream_of(args: Any) -> SwiftStream:
    """Open the stream for the steps and batches of a training.

    Raises:
        SettingsError: it grows, and nothing says how long the training is, or a sampler would look into its future.
    """
    batch = getattr(args, "global_batch_size", None)
    if batch is None:
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * max(1, args.global_world_size)
    directory = args.dataset[0]
    packs = LazyShardedDataset(directory, lanes=batch)
    if packs.end is not None:
        return SwiftStream(packs)
    steps = getattr(args, "train_iters", None) or getattr(args, "max_steps", None) or 0
    name = "train_iters" if hasattr(args, "train_iters") else "max_steps"
    if steps < 1:
        raise SettingsError(f"{directory} still grows, so that its length is not known: set --{name}")
    if args.train_dataloader_shuffle:
        raise SettingsError(
            f"{directory} still grows, and a sampler that shuffles would wait for its end: set "
            f"--train_dataloader_shuffle false"
        )
    return SwiftStream(LazyShardedDataset(directory, lanes=batch, num_packs=steps * batch, beyond="pad"))
