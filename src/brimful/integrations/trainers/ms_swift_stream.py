"""Streams of packs in ms-swift: ``--sharded_lazy true --sharded_lazy_pre_packed true`` with
``--dataset STREAM``.

ms-swift does not know these flags. It imports plugins while it builds its arguments, and then
refuses flags that it could not read. So the plugin reads these flags from the command line at that
point, and refuses the other unknown flags itself.
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

import torch
from torch.nn.functional import pad

from brimful.base.checks import MalformedRowError
from brimful.base.typing import IGNORE_INDEX
from brimful.base.wording import counted, setting
from brimful.collate.dialects.tensors import attached_tensors
from brimful.errors import SettingsError
from brimful.media.collate import MediaFeatures
from brimful.store.shards import Pack
from brimful.stream import LazyShardedDataset, StreamSettings
from brimful.stream.chunks import ChunkPacks

__all__ = ["SwiftStream", "install_stream_flags", "take_flags"]

SEE_PACKS = (
    "sdpa",
    "eager",
    "flex_attention",
    "flash_attn",
    *(f"flash_attention_{version}" for version in (2, 3, 4)),
)
"""Values of ``--attn_impl`` that detect packs from position ids."""

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class SwiftStream:
    """Packs of a stream by global number, finished or growing: each is a list of encoded rows, one
    for each sample, as ms-swift's own packing gives them to its template.

    The template joins them, so positions, and the padding that context parallelism needs in each
    sample, are its own.

    Attributes:
        packs: the stream.

    Args:
        packs: the stream, with the packs of a global batch as ``lanes``.
        features: of the media in the packs; None for packs of text.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> rows = SwiftStream(LazyShardedDataset(toy_stream(tempfile.mkdtemp(), [2])))[1]
    >>> [(row["length"] == len(row["input_ids"]), row["labels"][0]) for row in rows]
    [(True, -100)]
    """

    def __init__(self, packs: LazyShardedDataset, features: MediaFeatures | None = None) -> None:
        self.packs, self._features = packs, features

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> list[dict[str, Any]]:
        pack = self.packs[index]
        if pack.sharing is not None:
            raise SettingsError(
                f"pack {index} of the stream is a tree of {counted(pack.num_samples, 'sample')}, "
                "and ms-swift would take its segments for samples: pack without "
                f"{setting('share', 'prefixes')}"
            )
        return [self._row(pack.take([segment])) for segment in range(pack.num_segments)]

    def _row(self, sample: Pack) -> dict[str, Any]:
        row = {
            "input_ids": sample.input_ids.tolist(),
            "labels": sample.labels.tolist(),
            "length": len(sample),
        }
        if self._features is not None:
            for name, values in attached_tensors(self._features(sample).attached).items():
                # One number for each item is a list in ms-swift: the seconds of a grid.
                row[name] = values.tolist() if values.ndim == 1 else values
        return row


class SwiftRows:
    """Raw rows of ``chunk_00000.jsonl``, … by global number, encoded when read; reading waits for
    unwritten rows.

    Each rank opens its own chunks: chunk ``c`` is read by rank ``c % ranks``.

    Args:
        directory: folder of the chunks.
        encode: turns a raw row into an encoded one, such as ``template.encode``.
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

    def __init__(
        self, directory: str, encode: Callable[[Any], Any], *, num_rows: int, ranks: int, batch: int
    ) -> None:
        self._num_rows, self._ranks, self._batch = num_rows, ranks, batch

        def convert(row: Any, _: int) -> Any:
            try:
                return encode(row)
            except Exception as error:  # templates raise errors of any class
                raise MalformedRowError(f"the template cannot encode it: {error!r}") from error

        self._packs = ChunkPacks(
            directory, StreamSettings(lanes=ranks, assign="lane", packs_per_micro_batch=1), convert
        )

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> Any:
        step, slot = divmod(index, self._ranks * self._batch)
        rank, row = divmod(slot, self._batch)
        position = (step * self._batch + row) * self._ranks + rank
        self._packs.has_micro_batch(position, f"row {index:,}")
        (row,) = self._packs.__getitems__([position])
        return row


class MediaCollator:
    """Collator of a template, for rows with media: they get token types, from which some templates
    make positions. Spectrograms are as wide as the longest, and stay in the batch: the template of
    Qwen2-Audio drops the ones of packed samples.

    Args:
        template: of ms-swift, with its own collator.
    """

    def __init__(self, template: Any) -> None:
        self._template, self._collate = template, template.data_collator

    def __call__(
        self, packs: Sequence[list[dict[str, Any]]], *, padding_to: int | None = None
    ) -> dict[str, Any]:
        rows = [row for pack in packs for row in pack]
        if getattr(self._template, "requires_mm_token_type_ids", False):
            for row in rows:
                row["mm_token_type_ids"] = self._template.create_mm_token_type_ids(row["input_ids"])
        spectrograms = {}
        for name in ("input_features", "feature_attention_mask"):
            with_sound = [row for row in rows if name in row]
            width = max((row[name].shape[-1] for row in with_sound), default=0)
            for row in with_sound:
                row[name] = pad(row[name], (0, width - row[name].shape[-1]))
            if with_sound:
                spectrograms[name] = torch.cat([row[name] for row in with_sound])
        return {**spectrograms, **self._collate(rows, padding_to=padding_to)}


def take_flags(argv: Sequence[str]) -> tuple[dict[str, bool], list[str]]:
    """Return the flags of a stream on a command line, and the other arguments.

    A value that is not a boolean ends the process, as for ms-swift's own flags.

    >>> take_flags(["--sharded_lazy", "true", "--model", "m"])
    ({'sharded_lazy': True, 'sharded_lazy_pre_packed': False}, ['--model', 'm'])
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    names = ("sharded_lazy", "sharded_lazy_pre_packed")
    for name in names:
        # As in ms-swift, the flag without a value is true.
        parser.add_argument(
            f"--{name}", nargs="?", const="true", default="false", type=str.lower, choices=_BOOLEANS
        )
    parser.add_argument(
        "--sharded_lazy_samples_per_chunk"
    )  # unused: shards record their number of packs
    values, others = parser.parse_known_args(list(argv))
    return {name: _BOOLEANS[getattr(values, name)] for name in names}, others


def install_stream_flags() -> None:
    """Let ms-swift's arguments and pipelines accept the flags of a stream; call it once."""
    arguments = import_module("swift.arguments.base_args.base_args").BaseArguments
    pipeline = import_module("swift.pipelines.train.sft").SwiftSft
    # The first method that every class of arguments calls after the import of plugins.
    behind_plugins, prepare_dataset = arguments._init_model_kwargs, pipeline._prepare_dataset

    def init_model_kwargs(args: Any) -> None:
        _read_flags(args)
        behind_plugins(args)

    def prepare(self: Any, *values: Any, **options: Any) -> Any:
        if not hasattr(self.args, "_streams_packs"):
            return prepare_dataset(self, *values, **options)
        if not self.args._streams_packs:
            return [_rows_of(self.args, self.template.encode), None]
        # The template flattens the rows of one micro-batch and keeps their positions.
        self.template.packing = self.template.padding_free = True
        self.template.compute_sft_loss = partial(_loss_of_targets, self.template.compute_sft_loss)
        stream = _stream_of(self.args)
        if stream.packs.attachment_settings is not None:
            stream = _with_media(stream.packs, self.template, self.args)
        return [stream, None]

    arguments._init_model_kwargs, pipeline._prepare_dataset = init_model_kwargs, prepare


def _read_flags(args: Any) -> None:
    """Read the flags from the command line, and check them against the arguments.

    Raises:
        SettingsError: unknown arguments, or arguments that contradict a stream.
    """
    command = os.environ.get("RAY_SWIFT_ARGS")
    flags, others = take_flags(json.loads(command) if command else sys.argv[1:])
    if not any(flags.values()):
        return
    if not flags["sharded_lazy"]:
        raise SettingsError("--sharded_lazy_pre_packed true goes with --sharded_lazy true")
    if args.packing:
        raise SettingsError(
            "--packing true does not go with --sharded_lazy true, which does not change rows: set "
            "--packing false"
        )
    if args.streaming:
        raise SettingsError("--streaming true reads everything on rank 0: set --streaming false")
    if getattr(args, "rlhf_type", None):
        raise SettingsError("--sharded_lazy true is for `swift sft`, `swift pt` and `megatron sft`")
    if len(args.dataset) != 1 or args.val_dataset or args.cached_dataset:
        raise SettingsError(
            "--sharded_lazy true reads one stream: --dataset STREAM, without data sets to "
            "evaluate on"
        )
    if getattr(args, "attn_impl", None) not in (None, *SEE_PACKS):
        raise SettingsError(
            f"--attn_impl {args.attn_impl} does not see packs: use sdpa, flex_attention or "
            "flash_attention_2"
        )
    if flags["sharded_lazy_pre_packed"] and not args.padding_free:
        if _is_megatron(args):
            raise SettingsError("--padding_free false does not see packs: set --padding_free true")
        # As with --packing true: sequence parallelism then cuts samples, and refuses other attention.
        args.padding_free = args.sequence_parallel_size > 1
    unknown = _unknown_to_swift(type(args), others)
    if unknown:
        raise SettingsError(f"ms-swift does not know {' '.join(unknown)}")
    args._streams_packs = flags["sharded_lazy_pre_packed"]
    # Only the flags of streams remain, which ms-swift would refuse.
    args.ignore_args_error = True


def _is_megatron(args: Any) -> bool:
    return hasattr(args, "train_iters")


def _unknown_to_swift(arguments_class: type, argv: Sequence[str]) -> list[str]:
    """Return the arguments that ms-swift's parser does not know."""
    from transformers import HfArgumentParser

    with import_module("swift.utils.utils")._patch_get_type_hints():
        return list(HfArgumentParser([arguments_class]).parse_known_args(list(argv))[1])


def _with_media(packs: LazyShardedDataset, template: Any, args: Any) -> SwiftStream:
    """Return the packs with features of their media, which the template's collator then takes."""
    template.data_collator = MediaCollator(template)
    if hasattr(args, "training_args"):
        # A rank whose pack has no media computes no gradient for its towers, and DDP would wait for
        # it forever. Models of Megatron run their towers on zeros then.
        args.training_args.ddp_find_unused_parameters = True
    return SwiftStream(packs, MediaFeatures.of_packs(packs, args.model_dir))


def _loss_of_targets(compute: Callable[..., Any], model: Any, inputs: Any, **options: Any) -> Any:
    """Compute the loss like ms-swift's template, but return 0 for a batch without targets, as at
    the end of a stream.

    The mean of such a batch is NaN, which Trainer's logs replace by the loss of the earlier
    batches.
    """
    outputs = compute(model, inputs, **options)
    if "labels" in inputs:
        has_targets = (inputs["labels"][:, 1:] != IGNORE_INDEX).any()
        outputs.loss = outputs.loss.where(has_targets, outputs.loss.nan_to_num())
    return outputs


def _stream_of(args: Any) -> SwiftStream:
    """Open the stream for the steps and batches of a run.

    Declared steps also apply to a stream that has ended in the meantime, so that a resumed run
    continues in it.

    Raises:
        SettingsError: the stream grows, and the run declares no length or uses a sampler that needs
            the end.
    """
    batch = _global_batch(args)
    (directory,) = args.dataset
    packs = LazyShardedDataset(directory, lanes=batch)
    if packs.end is not None and (_declared_steps(args) < 1 or args.train_dataloader_shuffle):
        return SwiftStream(packs)
    packs = LazyShardedDataset(directory, lanes=batch, num_packs=_steps(args) * batch, beyond="pad")
    if hasattr(args, "training_args"):
        # The run ends where the stream ends, before the declared steps.
        swift = import_module("swift.callbacks")

        class EndOfStream(swift.TrainerCallback):  # type: ignore[misc, name-defined]  # of ms-swift, which is not typed here
            def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
                # The packs of this step were read: all ranks know, and agree, whether it
                # had any.
                if not packs.packs.has_micro_batch(state.global_step * packs.lanes):
                    state.max_steps = state.global_step + 1

        swift.callbacks_map["end_of_stream"] = EndOfStream
        args.training_args.callbacks.append("end_of_stream")
    return SwiftStream(packs)


def _rows_of(args: Any, encode: Callable[..., Any]) -> SwiftRows:
    """Open raw rows for the steps and batches of a run.

    Raises:
        SettingsError: see ``_steps``.
    """
    # Samplers of Megatron and of sequence parallelism divide a batch differently.
    is_apart = _is_megatron(args) or args.sequence_parallel_size > 1
    return SwiftRows(
        args.dataset[0],
        partial(encode, return_length=True),
        num_rows=_steps(args) * _global_batch(args),
        ranks=1 if is_apart else max(1, args.global_world_size),
        batch=1 if is_apart else args.per_device_train_batch_size,
    )


def _global_batch(args: Any) -> int:
    if _is_megatron(args):
        return int(args.global_batch_size)
    # ms-swift resolves its default only in the arguments of the trainer.
    accumulation = args.training_args.gradient_accumulation_steps
    # Ranks that share a sequence share its packs.
    ranks = max(1, args.global_world_size // args.sequence_parallel_size)
    return int(args.per_device_train_batch_size * accumulation * ranks)


def _steps(args: Any) -> int:
    """Return the declared steps of a run on growing data.

    Raises:
        SettingsError: no declared steps, or a sampler that shuffles.
    """
    steps, name = _declared_steps(args), "train_iters" if _is_megatron(args) else "max_steps"
    (directory,) = args.dataset
    if steps < 1:
        raise SettingsError(f"{directory} still grows, so its length is unknown: set --{name}")
    if args.train_dataloader_shuffle:
        raise SettingsError(
            f"{directory} still grows, and a sampler that shuffles would wait for its end: "
            "set --train_dataloader_shuffle false"
        )
    return steps


def _declared_steps(args: Any) -> int:
    return int((args.train_iters if _is_megatron(args) else args.max_steps) or 0)
