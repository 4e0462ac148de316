"""Plugin for ms-swift: ``swift sft --external_plugins plugin.py`` packs with a plan of brimful.

The plugin is two lines, and all arguments keep their names (``packing``, ``packing_length``,
``packing_strategy``)::

    from brimful.integrations.trainers.ms_swift import install
    install()

Do not pass this file itself as the plugin: ms-swift puts the folder of a plugin first on the import
path.
"""

import sys
from importlib import import_module
from typing import Any

import numpy as np

from brimful.errors import MissingExtraError, OversizedSampleError, SettingsError
from brimful.integrations.trainers.ms_swift_stream import SEE_PACKS, install_stream_flags
from brimful.plan import Plan, plan_packs

__all__ = ["STRATEGIES", "SwiftPacks", "install"]

STRATEGIES = {"binpack": "auto", "sequential": "next_fit"}
"""Algorithm of ``plan_packs`` for each ``packing_strategy`` of ms-swift; algorithm names are
accepted too.
"""


class SwiftPacks:
    """Replacement of ms-swift's ``PackingDataset``, with its arguments and attributes.

    The plan is made from the lengths alone, quickly and identically on every rank: no rank waits in
    a collective for another, and ``packing_num_proc`` has no effect. Samples are encoded when their
    pack is read, and flattened by the template, as in ms-swift.

    Attributes:
        plan: the samples of each pack.
        packed_length: ``int64[packs]``, tokens of each pack.

    Args:
        template, dataset: of ms-swift; ``dataset["lengths"]`` holds the lengths that ms-swift
            measured.
        packing_length: capacity; ``template.max_length`` if None.
        packing_strategy: ``binpack``, ``sequential``, or an algorithm of ``plan_packs``.
        num_proc, **unused: of ms-swift's own data set, such as ``strict``; without effect here.

    Raises:
        OversizedSampleError: a sample is longer than a pack; names the flags to change.
    """

    def __init__(
        self,
        template: Any,
        dataset: Any,
        num_proc: int = 1,
        *,
        packing_length: int | None = None,
        packing_strategy: str = "binpack",
        **unused: Any,
    ) -> None:
        template.packing = True
        template.padding_free = True
        self.template = template
        self.dataset = dataset
        self.packing_length = int(packing_length or template.max_length)
        self.packing_strategy = packing_strategy
        # A sample with several parts has a list of lengths in ms-swift.
        lengths = np.array(
            [
                sum(length) if isinstance(length, (list, tuple)) else length
                for length in dataset["lengths"]
            ],
            dtype=np.int32,
        )
        # An error of the planner names the planner's arguments; here it must name the flags of
        # ms-swift.
        try:
            self.plan: Plan = plan_packs(
                lengths,
                capacity=self.packing_length,
                algorithm=STRATEGIES.get(packing_strategy, packing_strategy),
            )
        except OversizedSampleError as error:
            longest = int(lengths.argmax())
            raise OversizedSampleError(
                f"sample {longest} has {lengths[longest]:,} tokens and packing_length is "
                f"{self.packing_length:,}: set --max_length {self.packing_length} with "
                "--truncation_strategy delete (or left, right), or a larger --packing_length"
            ) from error
        self.packed_length = self.plan.pack_tokens

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int) -> list[Any]:
        return [self.dataset[segment.sample_id] for segment in self.plan.pack(int(index))]

    def __repr__(self) -> str:
        return f"SwiftPacks({self.plan!r})"


def install() -> None:
    """Let ``swift sft`` (and ``swift pt``, ``megatron sft``) pack with ``SwiftPacks``, also without
    flash attention.

    It replaces ``PackingDataset`` in every module of ms-swift that names it, and the check that
    refuses packing without flash attention, and it adds streams of packs
    (``brimful.integrations.trainers.ms_swift_stream``). Streaming (``IterablePackingDataset``) is
    not changed. A second call has no effect.

    Raises:
        MissingExtraError: ms-swift is not installed.
    """
    try:
        packing = import_module("swift.dataset.packing")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "swift":
            raise
        raise MissingExtraError(
            "brimful.integrations.trainers.ms_swift needs ms-swift, which is not installed: pip "
            "install ms-swift"
        ) from error
    original = packing.PackingDataset
    if original is SwiftPacks:
        return
    install_stream_flags()
    for name in ("swift.dataset.packing", "swift.dataset", "swift.pipelines.train.sft"):
        # The pipeline is imported later and takes the name from swift.dataset, or is importing the
        # plugin now.
        module = sys.modules.get(name)
        if module is not None and vars(module).get("PackingDataset") in (original, None):
            vars(module)["PackingDataset"] = SwiftPacks
    import_module("swift.arguments.sft_args").SftArguments._check_padding_free = _check_padding_free


def _check_padding_free(args: Any) -> None:
    """Check arguments like ms-swift, but accept every attention that detects packs from
    ``position_ids``.

    Raises:
        SettingsError: another implementation; names the accepted ones.
    """
    if not (args.padding_free or args.packing):
        return
    args.padding_free = True
    # With sequence parallelism, other attention looks for packs in the part of a row that a rank has.
    see_packs = (None, *SEE_PACKS)
    if args.sequence_parallel_size > 1:
        see_packs = ("flash_attn", "flash_attention_2")
    if args.attn_impl in see_packs:
        return
    argument = "packing" if args.packing else "padding_free"
    raise SettingsError(
        f"--{argument} true does not go with --attn_impl {args.attn_impl}: use --attn_impl sdpa "
        "(anywhere), flex_attention (CUDA 8.0 and above) or flash_attention_2 (pip install "
        "flash-attn; the only one if --sequence_parallel_size is above 1)"
    )
