"""Streams of packs in ms-swift: ``--sharded_lazy true --sharded_lazy_pre_packed true`` with ``--dataset STREAM``.

ms-swift knows none of these flags. It imports plugins while it makes its arguments, and refuses afterwards what it could not
read. So they are read from the command line there, and whatever else is left over is refused as before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from brimful.collate.media_features import MediaFeatures
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.serve import LazyShardedDataset
from brimful.serve.chunk_loader import ChunkLoader
from brimful.serve.stream_settings import StreamSettings
from brimful.shards import Pack
from brimful.sources.sample import MalformedRowError
from brimful.typing import IGNORE_INDEX

__all__ = ["SwiftStream", "install_stream_flags", "take_flags"]

SEE_PACKS = ("sdpa", "eager", "flex_attention", "flash_attn", *(f"flash_attention_{version}" for version in (2, 3, 4)))
"""Values of ``--attn_impl`` that see packs in position ids."""

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


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
        self.packs = packs

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        pack = self.packs[index]
        return _row(pack) if self.packs.media_settings is None else {"pack": pack}


class SwiftRows:
    """Raw rows of ``chunk_00000.jsonl``, … by global number, encoded when they are read; rows to come are waited for.

    Each rank opens its own chunks: chunk ``c`` is read by rank ``c % ranks``.

    Args:
        directory: of the chunks.
        encode: makes an encoded row of a raw one, as ``template.encode``.
        num_rows: declared length: steps × rows of a global batch.
        ranks, batch: a sampler gives ``batch`` numbers to each of ``ranks`` in turn.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name, texts in {"chunk_00000.jsonl": '"a"\\n"b"\\n', "chunk_00001.jsonl": '"c"\\n"d"\\n'}.items():
    ...     _ = (folder / name).write_text(texts)
    >>> rows = SwiftRows(folder, str.upper, num_rows=4, ranks=2, batch=1)
    >>> [rows[number] for number in range(len(rows))]
    ['A', 'C', 'B', 'D']
    """

    def __init__(self, directory: str, encode: Callable[[Any], Any], *, num_rows: int, ranks: int, batch: int) -> None:
        self._num_rows, self._ranks, self._batch = num_rows, ranks, batch

        def convert(row: Any, _: int) -> Any:
            try:
                return encode(row)
            except Exception as error:  # templates raise what they come upon
                raise MalformedRowError(f"the template cannot encode it: {error!r}") from error

        self._loader = ChunkLoader(directory, StreamSettings(lanes=ranks, assign="lane"), convert)

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> Any:
        step, place = divmod(index, self._ranks * self._batch)
        rank, row = divmod(place, self._batch)
        position = (step * self._batch + row) * self._ranks + rank
        self._loader.has_micro_batch(position, f"row {index:,}")
        return self._loader.make_batch(position)[0]


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

    A value that is neither true nor false ends the process, as one of ms-swift's own flags does.

    >>> take_flags(["--sharded_lazy", "true", "--model", "m"])
    ({'sharded_lazy': True, 'sharded_lazy_pre_packed': False}, ['--model', 'm'])
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    names = ("sharded_lazy", "sharded_lazy_pre_packed")
    for name in names:
        # As ms-swift reads booleans: the flag alone is true.
        parser.add_argument(f"--{name}", nargs="?", const="true", default="false", type=str.lower, choices=_BOOLEANS)
    parser.add_argument("--sharded_lazy_samples_per_chunk")  # shards say how many packs they have
    values, others = parser.parse_known_args(list(argv))
    return {name: _BOOLEANS[getattr(values, name)] for name in names}, others


def install_stream_flags() -> None:
    """Let ms-swift's arguments and pipelines take the flags of a stream; for one call."""
    arguments = import_module("swift.arguments.base_args.base_args").BaseArguments
    pipeline = import_module("swift.pipelines.train.sft").SwiftSft
    # The first method behind the import of plugins, of every kind of arguments.
    behind_plugins, prepare_dataset = arguments._init_model_kwargs, pipeline._prepare_dataset

    def init_model_kwargs(args: Any) -> None:
        _read_flags(args)
        behind_plugins(args)

    def prepare(self: Any, *values: Any, **options: Any) -> Any:
        if not hasattr(self.args, "_streams_packs"):
            return prepare_dataset(self, *values, **options)
        if not self.args._streams_packs:
            return [_rows_of(self.args, self.template.encode), None]
        # Rows of one micro-batch are flattened by the template, with the positions that they have.
        self.template.packing = self.template.padding_free = True
        self.template.compute_sft_loss = partial(_loss_of_targets, self.template.compute_sft_loss)
        stream = _stream_of(self.args)
        if stream.packs.media_settings is not None:
            _take_media(self.template, stream.packs, self.args)
        return [stream, None]

    arguments._init_model_kwargs, pipeline._prepare_dataset = init_model_kwargs, prepare


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
    args._streams_packs = flags["sharded_lazy_pre_packed"]
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
    if args.packing:
        raise SettingsError(
            "--packing true does not go with --sharded_lazy true, whose rows stay as they are: set --packing false"
        )
    if args.streaming:
        raise SettingsError("--streaming true reads everything on rank 0: set --streaming false")
    if getattr(args, "rlhf_type", None):
        raise SettingsError("--sharded_lazy true is for `swift sft`, `swift pt` and `megatron sft`")
    if len(args.dataset) != 1 or args.val_dataset or args.cached_dataset:
        raise SettingsError("--sharded_lazy true reads one stream: --dataset STREAM, without others to evaluate on")
    if getattr(args, "attn_impl", None) not in (None, *SEE_PACKS):
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
    # A rank whose pack is without media gives its towers no gradient, and DDP would wait for that for ever.
    args.training_args.ddp_find_unused_parameters = True


def _loss_of_targets(compute: Callable[..., Any], model: Any, inputs: Any, **options: Any) -> Any:
    """Compute a loss as ms-swift's template does, and 0 for a batch without targets, as it is at the end of a stream.

    Its mean is nan, which Trainer's logs replace by the loss of the batches before it.
    """
    outputs = compute(model, inputs, **options)
    if "labels" in inputs:
        has_targets = (inputs["labels"][:, 1:] != IGNORE_INDEX).any()
        outputs.loss = outputs.loss.where(has_targets, outputs.loss.nan_to_num())
    return outputs


def _stream_of(args: Any) -> SwiftStream:
    """Open the stream for the steps and batches of a training.

    Steps that are declared are the same for a stream that has ended meanwhile: a training that is resumed goes on in it.

    Raises:
        SettingsError: it grows, and nothing says how long the training is, or a sampler would look into its future.
    """
    batch = _global_batch(args)
    directory = args.dataset[0]
    packs = LazyShardedDataset(directory, lanes=batch)
    if packs.end is not None and (_declared_steps(args) < 1 or args.train_dataloader_shuffle):
        return SwiftStream(packs)
    packs = LazyShardedDataset(directory, lanes=batch, num_packs=_steps(args) * batch, beyond="pad")
    if hasattr(args, "training_args"):
        _end_with(packs, args.training_args)
    return SwiftStream(packs)


def _end_with(packs: LazyShardedDataset, training_args: Any) -> None:
    """Let a training end where the stream ends, before the steps that were declared."""
    swift = import_module("swift.callbacks")

    class EndOfStream(swift.TrainerCallback):  # type: ignore[misc, name-defined]  # of ms-swift, which is not typed here
        def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            # The packs of this step were read, so every rank knows by now, and all alike, whether the stream had any.
            if not packs._loader.has_micro_batch(state.global_step * packs.lanes):
                state.max_steps = state.global_step + 1

    swift.callbacks_map["end_of_stream"] = EndOfStream
    training_args.callbacks.append("end_of_stream")


def _rows_of(args: Any, encode: Callable[..., Any]) -> SwiftRows:
    """Open raw rows for the steps and batches of a training.

    Raises:
        SettingsError: as of ``_stream_of``.
    """
    is_megatron = getattr(args, "global_batch_size", None) is not None  # its ranks divide a batch in other ways
    return SwiftRows(
        args.dataset[0],
        partial(encode, return_length=True),
        num_rows=_steps(args) * _global_batch(args),
        ranks=1 if is_megatron else max(1, args.global_world_size),
        batch=1 if is_megatron else args.per_device_train_batch_size,
    )


def _global_batch(args: Any) -> int:
    batch = getattr(args, "global_batch_size", None)
    if batch is None:
        # ms-swift's own default is resolved in the arguments of the trainer alone.
        accumulation = args.training_args.gradient_accumulation_steps
        batch = args.per_device_train_batch_size * accumulation * max(1, args.global_world_size)
    return int(batch)


def _steps(args: Any) -> int:
    """Return the declared steps of a training on data that grows."""
    steps = _declared_steps(args)
    name = "train_iters" if hasattr(args, "train_iters") else "max_steps"
    if steps < 1:
        raise SettingsError(f"{args.dataset[0]} still grows, so that its length is not known: set --{name}")
    if args.train_dataloader_shuffle:
        raise SettingsError(
            f"{args.dataset[0]} still grows, and a sampler that shuffles would wait for its end: set "
            f"--train_dataloader_shuffle false"
        )
    return steps


def _declared_steps(args: Any) -> int:
    return int(getattr(args, "train_iters", None) or getattr(args, "max_steps", None) or 0)
