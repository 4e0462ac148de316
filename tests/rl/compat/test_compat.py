"""Planning functions of trainers against the trainers' own, where these are installed."""

import inspect
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.rl.compat import megatron, nemo_rl, openrlhf, skyrl, slime, verl
from tests.rl.compat.sources import definitions_of


def names_of(function):
    return list(inspect.signature(function).parameters)


def lognormal(samples, seed=0):
    return np.random.default_rng(seed).lognormal(np.log(2500), 1, samples).clip(64, 32768).astype(int).tolist()


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40), st.integers(1, 8), st.booleans())
def test_partitions_hold_every_item_once(values, parts, equal_size):
    if equal_size and len(values) % parts:
        with pytest.raises(SettingsError, match="multiple of"):
            verl.get_seqlen_balanced_partitions(values, parts, equal_size)
        return
    if len(values) < parts:
        with pytest.raises(InvalidLengthsError):
            verl.get_seqlen_balanced_partitions(values, parts, equal_size)
        return
    found = verl.get_seqlen_balanced_partitions(values, parts, equal_size)
    assert sorted(item for part in found for item in part) == list(range(len(values)))
    assert all(part == sorted(part) and part for part in found)
    assert not equal_size or {len(part) for part in found} == {len(values) // parts}


@pytest.mark.parametrize(("package", "path"), [
    ("verl", "utils/seqlen_balancing.py"),
    ("openrlhf", "utils/seqlen_balancing.py"),
])  # fmt: skip
@pytest.mark.parametrize("equal_size", [False, True])
def test_partitions_are_as_even_as_theirs(package, path, equal_size):
    """The same signature, the same shape, and a largest part within half a per cent of differencing."""
    theirs = definitions_of(package, path, ["karmarkar_karp", "get_seqlen_balanced_partitions"])
    assert names_of(theirs.get_seqlen_balanced_partitions) == names_of(verl.get_seqlen_balanced_partitions)
    values = [24576 * length + length**2 for length in lognormal(512)]
    largest = [
        max(sum(values[item] for item in part) for part in function(values, 8, equal_size))
        for function in (theirs.get_seqlen_balanced_partitions, verl.get_seqlen_balanced_partitions)
    ]
    assert largest[1] <= 1.005 * largest[0]


def test_micro_batches_of_verl():
    """Its batches are rows of a mapping; the budget holds, groups stay whole, counts are multiples."""
    torch = pytest.importorskip("torch")

    class Batch(dict):
        def __getitem__(self, key):
            return (
                Batch({name: value[key] for name, value in self.items()})
                if isinstance(key, list)
                else dict.__getitem__(self, key)
            )

    lengths = torch.tensor([3, 3, 5, 6, 1, 1])
    mask = (torch.arange(6)[None] < lengths[:, None]).long()
    batch = Batch(input_ids=mask * 7, attention_mask=mask)
    rows, positions = verl.rearrange_micro_batches(batch, 7)
    costliest, second, third = verl.micro_batch_indices(lengths.numpy(), 7)
    assert positions == [third, costliest, second]
    assert [int(row["attention_mask"].sum()) for row in rows] == [6, 7, 6]
    _, positions = verl.rearrange_micro_batches(batch, 12, num_batches_divided_by=2, force_group_size=2)
    assert len(positions) % 2 == 0
    assert all({item ^ 1 for item in row} == set(row) for row in positions)
    with pytest.raises(OversizedSampleError):
        verl.rearrange_micro_batches(batch, 5)


def test_the_signature_of_verl():
    theirs = definitions_of("verl", "utils/seqlen_balancing.py", ["rearrange_micro_batches"])
    assert names_of(theirs.rearrange_micro_batches) == names_of(verl.rearrange_micro_batches)


@pytest.mark.parametrize("seed", range(5))
def test_counts_of_openrlhf_are_enough(seed):
    """Spread over that number, no micro-batch is above the budget: theirs divides evenly by a count that may not allow it."""
    lengths = lognormal(60, seed)
    number = openrlhf.get_minimum_num_micro_batch_size(lengths, 16384, 2, 1)
    assert number >= -(-sum(lengths) // 32768)
    theirs = definitions_of("openrlhf", "utils/seqlen_balancing.py", ["get_minimum_num_micro_batch_size"])
    assert names_of(theirs.get_minimum_num_micro_batch_size) == names_of(openrlhf.get_minimum_num_micro_batch_size)
    assert number <= theirs.get_minimum_num_micro_batch_size(lengths, 16384, 2, 1)


@pytest.mark.parametrize("seed", range(40))
def test_partitions_of_openrlhf_are_within_the_budget(seed):
    """Its two functions are called one after the other: the second divides evenly, and knows no budget."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 11, rng.integers(2, 30)).tolist()
    number = openrlhf.get_minimum_num_micro_batch_size(lengths, 10, 1, 1)
    parts = openrlhf.get_seqlen_balanced_partitions(lengths, number, False)
    assert max(sum(lengths[sample] for sample in part) for part in parts) <= 10


def schedule_of(lengths, **settings):
    args = SimpleNamespace(**{"use_dynamic_batch_size": True, "max_tokens_per_gpu": 16384, **settings.pop("args", {})})
    parallel = {"dp_size": 4, "cp_size": 2, "vpp_size": 2, "microbatch_group_size_per_vp_stage": 2}
    return slime.build_dp_schedule(args, parallel, lengths, **settings)


def test_the_schedule_of_slime():
    """Equal counts that are multiples, the budget, whole rollouts in a step, trailing ones left out."""
    lengths = lognormal(200)
    rollouts = [sample // 2 for sample in range(200)]
    sizes = {"hidden_size": 4096, "num_layers": 32, "num_attention_heads": 32, "ffn_hidden_size": 11008}
    found = schedule_of(lengths, args=sizes, global_batch_size=48, rollout_indices=rollouts)
    samples_of, micro_batches, numbers, sizes_of_steps = found
    assert sizes_of_steps == [48, 48]
    assert all(number % 2 == 0 for number in numbers)
    assert sorted(sample for samples in samples_of for sample in samples) == list(range(192))
    for samples, rows in zip(samples_of, micro_batches, strict=True):
        assert len(rows) == sum(numbers)
        assert [position for row in rows for position in row] == list(range(len(samples)))
        assert all(0 < sum(lengths[samples[position]] for position in row) <= 32768 for row in rows)
        first_step = {samples[position] for row in rows[: numbers[0]] for position in row}
        assert first_step <= set(range(96))


def test_a_sample_of_slime_above_the_budget_is_alone(logged):
    """As in slime: a training that has run for days does not end for one long answer."""
    lengths = [15, 3, 3, 3, 3, 3, 3, 3]
    args = SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=10)
    parallel = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    samples, rows, _, _ = slime.build_dp_schedule(
        args, parallel, lengths, global_batch_size=8, rollout_indices=range(8)
    )
    groups = [[of[place] for place in row] for of, own in zip(samples, rows, strict=True) for row in own]
    assert [0] in groups
    assert sorted(sample for group in groups for sample in group) == list(range(8))
    assert all(group == [0] or sum(lengths[sample] for sample in group) <= 10 for group in groups)
    assert logged == [
        "1 sample above the 10 tokens of a micro-batch, the longest of 15: each has its own; raise max_tokens_per_gpu if "
        "memory ends"
    ]


def test_fixed_micro_batches_of_slime():
    found = schedule_of([5, 3, 7, 1] * 8, args={"use_dynamic_batch_size": False, "micro_batch_size": 4},
                        global_batch_size=32, rollout_indices=range(32))  # fmt: skip
    assert {len(row) for rows in found[1] for row in rows} == {4}
    assert found[2] == [2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"args": {"global_batch_tokens": 9}}, "global_batch_tokens"),
        (
            {"args": {"multimodal_aware_packing": "separate"}, "sample_is_multimodal": [True] * 8},
            "multimodal_aware_packing",
        ),
        ({"global_batch_size": 9}, "fewer than one global_batch_size"),
    ],
)
def test_what_slime_alone_has_is_refused(settings, words):
    with pytest.raises((SettingsError, InvalidLengthsError), match=words):
        schedule_of([3] * 8, **{"global_batch_size": 8, "rollout_indices": range(8), **settings})


@pytest.mark.parametrize("make", [nemo_rl.get_packer, skyrl.make_seq_packer])
def test_bins_of_packers(make):
    """Dealt round robin, as both do, ranks compute bins of equal cost at the same time."""
    lengths = lognormal(300)
    packer = make("modified_first_fit_decreasing", 32768, min_bin_count=8, bin_count_multiple=8)
    bins = packer.pack(lengths)
    assert len(bins) % 8 == 0
    assert sorted(item for each in bins for item in each) == list(range(300))
    loads = np.array([sum(lengths[item] for item in each) for each in bins])
    assert loads.min() > 0
    assert loads.max() <= 32768
    assert loads.reshape(-1, 8).max(axis=1).sum() <= 1.2 * loads.sum() / 8


@pytest.mark.parametrize("make", [nemo_rl.get_packer, skyrl.make_seq_packer])
@pytest.mark.parametrize("name", ["min_bin_count", "bin_count_multiple"])
@pytest.mark.parametrize("value", [0, -1])
def test_counts_of_packers_below_one_are_refused(make, name, value):
    """NeMo RL raises ValueError; without it 0 passes for a count that was not given."""
    with pytest.raises(SettingsError, match=f"{name} must be a whole number of at least 1 and is {value}"):
        make("x", 10, **{name: value})


def test_the_packer_of_skyrl():
    """The same arguments and results; theirs pads the count from the largest bins."""
    names = ["PackingStrategy", "SeqPacker", "FirstFitDecreasing", "Balanced", "make_seq_packer"]
    theirs = definitions_of("skyrl", "train/dataset/bin_packing.py", names)
    assert names_of(theirs.make_seq_packer) == names_of(skyrl.make_seq_packer)
    lengths = lognormal(300)
    packer = theirs.FirstFitDecreasing(32768, 8, 8)
    assert len(skyrl.make_seq_packer("balanced", 32768, 8, 8).pack(lengths)) <= len(packer.pack(lengths))


def test_the_scheduler_of_megatron():
    """Fed to the same call: ids by micro-batch and rank, no rank empty, a sample on a power of two of ranks, less waiting."""
    pytest.importorskip("torch")
    schedule = pytest.importorskip("megatron.core.pipeline_parallel.hybrid_cp_schedule", exc_type=ImportError)
    lengths = np.random.default_rng(0).lognormal(np.log(4000), 1, 512).clip(64, 65536).astype(int).tolist()
    group = SimpleNamespace(size=lambda: 32)
    waits = []
    for kind in (schedule.BalancedCPScheduler, megatron.balanced_cp_scheduler()):
        scheduler = kind(8192, group)
        assert isinstance(scheduler, schedule.BalancedCPScheduler)
        by_length, by_id = scheduler.get_groups_and_subsamples(list(enumerate(lengths)), None)
        assert [[[lengths[sample] for sample in samples] for samples in rows] for rows in by_id] == by_length
        assert sorted({sample for rows in by_id for samples in rows for sample in samples}) == list(range(512))
        assert all(samples for rows in by_id for samples in rows)
        slowest = 0.0
        for rows in by_id:
            degrees = {sample: sum(sample in samples for samples in rows) for samples in rows for sample in samples}
            assert all(degree & (degree - 1) == 0 for degree in degrees.values())
            slowest += max(sum(lengths[sample] ** 2 / degrees[sample] for sample in samples) for samples in rows)
        waits.append(slowest / (sum(length**2 for length in lengths) / 32))
    assert waits[1] <= min(1.03, waits[0])


def test_a_scheduler_needs_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron.core.pipeline_parallel.hybrid_cp_schedule", None)
    with pytest.raises(ImportError):
        megatron.balanced_cp_scheduler()
