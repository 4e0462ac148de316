"""Rows as trainers pad them: cases from their source, their tests and their threads, by hand."""

import numpy as np
import pytest

from brimful import plan_packs
from brimful.collate import Padding
from brimful.collate.layout import lay_out
from brimful.errors import SettingsError
from brimful.plan import Alignment
from brimful.plan.policies.trainer_multiples import RULES
from brimful.testing.toys import toy_pack
from tests.plan.contents import lengths_of

CASES = [
    # trainer, CP, TP with sequence parallelism, format, segment, row
    # Megatron-Bridge: lcm(2·cp, cp·tp) for each sample of a batch; Megatron-LM and NeMo AutoModel: 2·cp.
    ("kernels", 2, 2, None, 4, 4),
    ("kernels", 2, 8, None, 16, 16),
    ("kernels", 4, 1, None, 8, 8),
    # ms-swift, get_padding_to: the row alone has tp, the segment 2·cp. Its MXFP8 was 16·tp, and a shard of TP had 7,984.
    ("megatron_swift", 1, 4, "mxfp8", 1, 128),
    ("megatron_swift", 1, 4, None, 1, 4),
    ("megatron_swift", 2, 8, None, 4, 16),
    ("megatron_swift", 2, 2, "fp8", 4, 64),
    ("megatron_swift", 2, 2, "nvfp4", 4, 64),
    ("megatron_swift", 2, 2, "blockwise", 4, 512),
    ("megatron_swift", 2, 1, None, 4, 4),
    # NeMo RL: the least make_sequence_length_divisible_by, and the recipe's multiple on each of 2·cp·tp parts.
    ("nemo_rl", 2, 2, "blockwise", 8, 1024),
    ("nemo_rl", 2, 2, "mxfp8", 8, 256),
    ("nemo_rl", 1, 4, "fp8", 4, 64),
    ("nemo_rl", 4, 1, None, 8, 8),
    # SkyRL, packing_utils: numbers of its own tests.
    ("skyrl", 1, 4, None, 1, 4),
    ("skyrl", 2, 1, None, 4, 4),
    ("skyrl", 2, 4, None, 16, 16),
    ("skyrl", 1, 4, "blockwise", 1, 512),
    ("skyrl", 2, 1, "blockwise", 4, 32),
    ("skyrl", 1, 2, "blockwise", 1, 256),
    ("skyrl", 2, 2, "blockwise", 8, 512),
    ("skyrl", 1, 1, "mxfp8", 1, 32),
    ("skyrl", 2, 1, "mxfp8", 4, 64),
    ("skyrl", 1, 2, "mxfp8", 1, 64),
    ("skyrl", 2, 2, "mxfp8", 8, 128),
    ("skyrl", 1, 4, "mxfp8", 1, 128),
    ("skyrl", 1, 1, "fp8", 1, 16),
    # slime: 2·cp for each sample, then 128 tokens for each of the cp·tp ranks.
    ("slime", 1, 1, None, 1, 128),
    ("slime", 2, 4, None, 4, 1024),
    ("slime", 2, 4, "blockwise", 4, 1024),
    # verl: lcm(16, a) and 128·a with a = 2·cp·tp, or tp without CP.
    ("verl", 2, 2, "blockwise", 16, 1024),
    ("verl", 4, 4, "fp8", 32, 4096),
    ("verl", 1, 2, "fp8", 16, 256),
    ("verl", 1, 1, "fp8", 16, 128),
    ("verl", 1, 4, None, 4, 4),
    ("verl", 2, 4, None, 16, 16),
]  # fmt: skip


@pytest.mark.parametrize(("trainer", "cp", "tp", "fp8", "segment", "total"), CASES)
def test_multiples_of_trainers(trainer, cp, tp, fp8, segment, total):
    alignment = Alignment.of_parallelism(cp=cp, tp=tp, sequence_parallel=True, fp8=fp8, trainer=trainer)
    assert alignment == Alignment(segment=segment, total=total)


def test_every_trainer_has_cases():
    assert {case[0] for case in CASES} == RULES.keys()


@pytest.mark.parametrize(
    ("trainer", "parallel", "lengths", "row"),
    [
        # SkyRL's draft of a packer that counts both: segments of 2·cp·tp, then the row. 33 + 31 + 64 by 8: 40 + 32 + 64.
        ("skyrl", {"cp": 2, "tp": 2, "sequence_parallel": True, "fp8": "mxfp8"}, [33, 31, 64], 256),
        ("skyrl", {"cp": 2, "tp": 1}, [5, 7], 16),
        # ms-swift#9723: 31,936 tokens on four ranks of sequence parallelism.
        ("megatron_swift", {"tp": 4, "sequence_parallel": True, "fp8": "mxfp8"}, [31_000, 936], 32_000),
        ("megatron_swift", {"cp": 2, "tp": 2, "sequence_parallel": True, "fp8": "fp8"}, [5, 9, 3, 13], 64),
        # NeMo RL: 8 + 16 + 8 + 16 by 8, then 64·8.
        ("nemo_rl", {"cp": 2, "tp": 2, "sequence_parallel": True, "fp8": "fp8"}, [5, 9, 3, 13], 128),
        # verl: each to 16, then 1,024.
        ("verl", {"cp": 2, "tp": 2, "sequence_parallel": True, "fp8": "blockwise"}, [1000, 17], 2048),
        ("slime", {"cp": 2}, [250, 3], 256),
    ],
)  # fmt: skip
def test_rows_of_trainers(trainer, parallel, lengths, row):
    """Each segment to its multiple, their sum to the row's: planner and collator compute the same row."""
    alignment = Alignment.of_parallelism(**parallel, trainer=trainer)
    rounded = alignment.rounded(np.array(lengths))
    assert alignment.padded_total(int(rounded.sum())) == row
    assert plan_packs(lengths, capacity=row, alignment=alignment).num_packs == 1
    assert row == alignment.total or plan_packs(lengths, capacity=row - 1, alignment=alignment).num_packs > 1
    batch = lay_out([toy_pack(lengths)], padding=Padding.of_alignment(alignment))
    assert len(batch.input_ids) == row


def test_a_pack_that_is_full_before_its_padding_is_not_planned():
    """Without it a row of verl that was planned for 1,024 tokens has 2,048: 64 samples of 16 after their padding."""
    alignment = Alignment.of_parallelism(cp=2, tp=2, sequence_parallel=True, fp8="fp8", trainer="verl")
    lengths = [15] * 68
    plain, aligned = (plan_packs(lengths, capacity=1024, alignment=multiple, seed=None) for multiple in (1, alignment))
    rows = [
        [alignment.padded_total(int(alignment.rounded(np.array(pack)).sum())) for pack in lengths_of(plan)]
        for plan in (plain, aligned)
    ]
    assert rows == [[2048], [1024, 1024]]


def test_trainers_that_cannot_be():
    with pytest.raises(SettingsError, match="trainer='keras' is unknown: use one of kernels, megatron_swift"):
        Alignment.of_parallelism(trainer="keras")
    with pytest.raises(
        SettingsError, match="trainer='verl': it does not pad for fused attention: leave fused_attention"
    ):
        Alignment.of_parallelism(trainer="verl", fused_attention=True)
    with pytest.raises(SettingsError, match="capacity=1000 is below the alignment of 1,024 tokens"):
        plan_packs([5], capacity=1000, alignment=Alignment.of_parallelism(cp=8, trainer="slime"))
