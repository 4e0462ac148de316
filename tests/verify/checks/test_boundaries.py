"""Boundaries for kernels: what is wrong with them is told by numbers, without a run of the model."""

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.verify.checks.boundaries import check_boundaries  # noqa: E402
from brimful.verify.verify_report import Status  # noqa: E402
from tests.verify import faults  # noqa: E402
from tests.verify.toys import arrays, samples  # noqa: E402

STARTS = [0, 7, 16, 17, 21, 25]
"""Where the samples of ``toys.IDS`` begin, then the padding, and the end of the row."""


def found(rows=None, **changes):
    """The finding of boundaries, with other values in a right batch; None takes one out."""

    def collate(features):
        batch = {**faults.right(features), **changes}
        return {name: value for name, value in batch.items() if value is not None}

    return arrays(collate, rows)["boundaries"]


def edges(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def lengths_of(lengths):
    """The finding for boundaries of other lengths than the samples', with the padding at the end."""
    return edges([0, *np.cumsum(lengths).tolist(), 25])


def test_right_boundaries_pass_in_every_form():
    """With and without padding of its own, and with rows that kernels see as one long row."""
    assert found().detail == "cu_seq_lens_q, cu_seq_lens_k, seq_idx"
    assert found(cu_seq_lens_q=None, cu_seq_lens_k=None).detail == "seq_idx"
    assert found(seq_idx=None, max_length_q=9).passed
    assert found(cu_seq_lens_q=None, cu_seq_lens_k=None, seq_idx=None).detail.startswith("the batch has none")
    assert found(cu_seq_lens_q=edges([0, 7, 16, 17, 19, 21, 25])).failed

    def in_two_rows(features, last=10):
        one, two = (
            faults.without(faults.right(part), "cu_seq", "max", "seq_idx") for part in (features[:1], features[1:])
        )
        width = two["input_ids"].shape[1]
        fills = {"input_ids": 0, "labels": -100, "position_ids": 0}
        pad = torch.nn.functional.pad
        rows = {key: torch.cat([pad(one[key], (0, width - 11), value=fill), two[key]]) for key, fill in fills.items()}
        return {**rows, "cu_seq_lens_q": edges([0, 7, width, width + 9, width + last, width + 14, 2 * width])}

    assert arrays(in_two_rows)["boundaries"].passed
    assert (
        "at 29 cuts the sample in [28, 32) of 4 tokens"
        in arrays(lambda features: in_two_rows(features, last=11))["boundaries"].detail
    )


@pytest.mark.parametrize("offset", [-3, -1, 1, 2])
def test_boundaries_that_all_lie_beside_the_beginning(offset):
    """Half-open intervals read as closed ones; a user sees by how many tokens, and in which direction."""
    rows = samples([5] * 9, [6] * 8, [7] * 6, [8] * 5)
    values = edges([0, 9 + offset, 17 + offset, 23 + offset, 28, 32])
    cause = found(rows, cu_seq_lens_q=values).cause
    size, way = ("one", "1 token") if abs(offset) == 1 else (abs(offset), f"{abs(offset)} tokens")
    assert cause.startswith(f"boundaries off by {size}: every one lies {way} {'after' if offset > 0 else 'before'} ")


@pytest.mark.parametrize("has_padding", [True, False])
@pytest.mark.parametrize(("missing", "words"), [(1, "1 too few"), (2, "2 too few"), (-1, "1 too many")])
def test_lengths_that_are_all_wrong_by_one_number(missing, words, has_padding):
    """Lengths are counted after the shift: the boundaries run away from the samples."""
    ends = (np.cumsum([9, 8, 6, 5]) - missing * np.arange(1, 5)).tolist()
    values = edges([0, *ends, 32] if has_padding else [0, *ends[:-1], 32])
    cause = found(samples([5] * 9, [6] * 8, [7] * 6, [8] * 5), cu_seq_lens_q=values).cause
    assert cause.startswith(f"lengths off by {'one' if abs(missing) == 1 else 2}")
    assert words in cause


def test_lengths_of_which_one_differs_have_no_common_offset():
    """Without padding of its own the last segment ends with the row, and tells nothing."""
    rows = samples([5] * 9, [6] * 8, [7] * 6, [8] * 5)
    for values in ([0, 8, 15, 20, 32], [0, 8, 15, 18, 32], [0, 7, 14, 19, 32]):
        cause = found(rows, cu_seq_lens_q=edges(values)).cause
        assert cause.startswith("lengths off by one") == (values[1:4] == [8, 15, 20])


@pytest.mark.parametrize("multiple", [2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("up", [False, True])
def test_lengths_that_are_rounded_for_context_parallelism(multiple, up):
    """The multiple is named: it is the number of ranks, or twice that."""
    lengths = np.array([3 * multiple + 1, 5 * multiple + 1, 7 * multiple])
    rounded = (-(-lengths // multiple) if up else lengths // multiple) * multiple
    values = edges([0, *np.cumsum(rounded).tolist(), 20 * multiple])
    rows = samples(*[[5 + number] * length for number, length in enumerate(lengths.tolist())])
    collator = PackCollator(pad_to=20 * multiple)
    cause = arrays(lambda features: {**collator(features), "cu_seq_lens_q": values}, rows)["boundaries"].cause
    assert f"{lengths[0]} tokens are given to the kernel as {rounded[0]}, a multiple of {multiple}" in cause


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        ([1, 7, 16, 17, 21, 25], "they must rise from 0"),
        ([0, 16, 7, 17, 21, 25], "they must rise from 0"),
        ([0, 7, 12, 16, 17, 21, 25], "a boundary at 12 cuts the sample in [7, 16) of 9 tokens"),
        ([0, 16, 17, 21, 25], "the sample in [7, 16) does not begin at a boundary"),
        ([0, 7, 17, 21, 25], "the sample in [16, 17) does not begin at a boundary"),
        ([0, 7, 16, 17, 25], "pass"),
        ([0, 7, 16, 17, 21], "they end at 21 and the row has 25 tokens"),
        ([0, 7, 7, 16, 17, 21, 25], "pass"),
    ],
)
def test_the_first_wrong_boundary_is_told(values, detail):
    """Its place leads to the sample; an empty segment, and padding that goes with the last sample, hide nothing."""
    finding = found(cu_seq_lens_q=edges(values))
    assert finding.passed if detail == "pass" else detail in finding.detail, finding


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0] * 7 + [1] * 9 + [2] + [3] * 4 + [4] * 4, "pass"),
        ([0] * 7 + [1] * 9 + [0] + [1] * 8, "pass"),
        ([0] * 7 + [1] * 10 + [3] * 4 + [4] * 4, "carry their state"),
        ([0] * 16 + [2] + [3] * 4 + [4] * 4, "carry their state"),
        ([0] * 7 + [1] * 9 + [2] * 9, "carry their state"),
        ([0] * 3 + [9] * 4 + [1] * 9 + [2] + [3] * 4 + [4] * 4, "carry their state"),
        ([0] * 7 + [1] * 9 + [2] + [3] * 3 + [4] * 5, "carry their state"),
        ([0] * 8 + [1] * 9 + [2] + [3] * 7, "seq_idx off by one: it changes 1 token after every beginning"),
        ([0] * 5 + [1] * 9 + [2] + [3] * 10, "seq_idx off by 2: it changes 2 tokens before every beginning"),
    ],
)
def test_numbers_of_samples_change_where_samples_begin(numbers, words):
    """Recurrent layers read only these; the padding may have the number of the last sample."""
    finding = found(seq_idx=edges([numbers]))
    if words == "pass":
        assert finding.passed, finding
    else:
        assert finding.cause.startswith(words) or (finding.cause.startswith("recurrent") and words in finding.cause), (
            finding
        )


@pytest.mark.parametrize("key", ["max_length_q", "max_length_k", "max_seqlen"])
def test_a_kernel_computes_as_far_as_the_longest_sample(key):
    """A maximum of another batch leaves the end of the longest sample undefined; a larger one costs nothing."""
    assert found(**{key: 10}).passed
    assert f"{key} is 8, the longest sample has 9 tokens" in found(**{key: 8}).detail


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16])
def test_boundaries_are_of_32_bits(dtype):
    """Flash attention reads no other numbers, and says so at the first step of the training."""
    assert f"cu_seq_lens_q is {dtype}" == found(cu_seq_lens_q=edges([*STARTS], dtype)).detail


LENGTHS = [2, 1, 3]


def _setup(seq_idx):
    """A batch of one row with these numbers of samples, and no other key that tells boundaries."""
    ends = np.cumsum(LENGTHS).tolist()
    places = [SimpleNamespace(row=0, start=end - size, stop=end) for end, size in zip(ends, LENGTHS, strict=True)]
    batch: Any = SimpleNamespace(
        kwargs={"seq_idx": torch.tensor([seq_idx])},
        has_trees=False,
        ids=np.arange(len(seq_idx))[None],
        located=list(enumerate(places)),
        per_token=lambda name: np.array([seq_idx]),
    )
    return SimpleNamespace(batch=batch)


def test_seq_idx_changes_at_every_boundary_and_nowhere_else():
    """Wrong at one of several is enough for a recurrent layer to carry its state from a sample into the next."""
    for seq_idx in product(range(3), repeat=sum(LENGTHS)):
        numbers = np.split(np.array(seq_idx), np.cumsum(LENGTHS)[:-1])
        is_constant = all(len(set(one)) == 1 for one in numbers)
        is_right = is_constant and all(one[-1] != other[0] for one, other in pairwise(numbers))
        assert (check_boundaries(_setup(seq_idx)).status is Status.PASS) == is_right, seq_idx
