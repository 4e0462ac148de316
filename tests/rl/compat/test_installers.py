"""Planning functions put into trainers that run: where they are bound, which calls reach them, and what is refused."""

import importlib
import importlib.metadata
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.rl.compat import megatron, slime, verl

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
FAKES = ("verl", "slime", "megatron", "user")


def module_of(name, **values):
    """A module with some values, imported until ``fakes`` removes it."""
    module = types.ModuleType(name)
    vars(module).update(values)
    sys.modules[name] = module
    return module


@pytest.fixture
def fakes(monkeypatch):
    """A trainer's modules, as far as its source was read, which vanish after the test."""

    def others():
        return {name: module for name, module in sys.modules.items() if name.split(".")[0] in FAKES}

    before = others()
    for name in before:  # where the trainer is installed
        del sys.modules[name]
    yield monkeypatch
    for name in others():
        del sys.modules[name]
    sys.modules.update(before)


def fake_verl(arguments="batch, max_token_len, dp_group=None, force_group_size=1"):
    """``verl.utils.seqlen_balancing`` of 0.9, and a module that has bound its function before."""
    names = {"__name__": "verl.utils.seqlen_balancing"}
    exec(f"def rearrange_micro_batches({arguments}): return 'theirs'", names)
    function = names["rearrange_micro_batches"]
    balancing = module_of("verl.utils.seqlen_balancing", rearrange_micro_batches=function)
    module_of("verl")
    module_of("verl.utils", seqlen_balancing=balancing)
    engine = module_of("verl.workers.engine.utils", rearrange_micro_batches=function)
    return balancing, engine, module_of("user", rearrange_micro_batches=function)


def test_verl_gets_our_function_where_it_has_bound_its_own(fakes):
    """Bound before in its engines, and in its module for modules that are imported later; not in the user's modules."""
    balancing, engine, user = fake_verl()
    assert verl.install() == ["verl.utils.seqlen_balancing", "verl.workers.engine.utils"]
    assert balancing.rearrange_micro_batches is engine.rearrange_micro_batches is verl.rearrange_micro_batches
    assert user.rearrange_micro_batches(None, 1) == "theirs"


def test_verl_gets_the_scheduler_of_dynamic_context_parallelism(fakes):
    """The function that returns the class, in its module and in the engine that has bound it."""
    fake_verl()
    dynamic = module_of("verl.utils.dynamic_cp_scheduler", get_megatron_dynamic_cp_scheduler_cls=lambda: "theirs")
    vars(sys.modules["verl.utils"])["dynamic_cp_scheduler"] = dynamic
    engine = module_of(
        "verl.workers.engine.megatron.transformer_impl",
        get_megatron_dynamic_cp_scheduler_cls=dynamic.get_megatron_dynamic_cp_scheduler_cls,
    )
    assert verl.install()[2:] == [
        "verl.utils.dynamic_cp_scheduler",
        "verl.workers.engine.megatron.transformer_impl",
    ]
    for module in (dynamic, engine):
        assert module.get_megatron_dynamic_cp_scheduler_cls is megatron.dynamic_cp_scheduler


def test_a_verl_with_a_new_argument_keeps_its_own(fakes):
    """Ours would drop the argument, or fail in the middle of a training."""
    balancing, _, _ = fake_verl("batch, max_token_len, chunk_size=None")
    with pytest.raises(SettingsError, match="takes chunk_size, which brimful does not know: leave BRIMFUL_VERL unset"):
        verl.install()
    assert balancing.rearrange_micro_batches(None, 1) == "theirs"


@pytest.mark.parametrize(("value", "is_ours"), [(None, False), ("0", False), ("1", True)])
def test_the_entry_point_of_verl_is_opt_in(fakes, value, is_ours):
    """As verl loads it in every process: named in the group, and nothing happens without the variable."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["verl.plugins"]
    balancing, _, _ = fake_verl()
    if value is None:
        fakes.delenv("BRIMFUL_VERL", raising=False)
    else:
        fakes.setenv("BRIMFUL_VERL", value)
    sys.modules.pop(entries["brimful"], None)
    importlib.metadata.EntryPoint("brimful", entries["brimful"], "verl.plugins").load()
    assert (balancing.rearrange_micro_batches is verl.rearrange_micro_batches) == is_ours


def test_a_plugin_that_fails_says_so(fakes, logged):
    """verl logs errors of plugins below what it shows: the training would run with its own function in silence."""
    fake_verl("batch, chunk_size")
    fakes.setenv("BRIMFUL_VERL", "1")
    sys.modules.pop("brimful.integrations.verl_plugin", None)
    importlib.import_module("brimful.integrations.verl_plugin")
    (line,) = logged
    assert line.startswith("verl keeps its own micro-batches: verl.utils.seqlen_balancing.")


class Rows(dict):
    """A batch of verl: padded rows, and the rows at a list of positions."""

    def __getitem__(self, key):
        if isinstance(key, list):
            return Rows({name: value[key] for name, value in self.items()})
        return dict.__getitem__(self, key)


def rows_of(lengths):
    torch = pytest.importorskip("torch")
    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long()
    return Rows(input_ids=mask * 7, attention_mask=mask)


@pytest.fixture
def another_rank(monkeypatch):
    """A collective in which this rank meets one other, whose facts the test gives."""
    torch = pytest.importorskip("torch")
    sent = []

    def meet(*facts):
        def all_reduce(values, op, group):
            assert (op, group) == (torch.distributed.ReduceOp.MAX, "dp")
            sent.append(values.tolist())
            values.copy_(torch.maximum(values, torch.tensor(facts)))

        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
        return sent

    return meet


def test_ranks_of_verl_agree_on_a_number(another_rank):
    """This rank needs two micro-batches, the other three: one collective, and three here too."""
    sent = another_rank(3, -8, 0)
    _, positions = verl.rearrange_micro_batches(rows_of([3, 3, 2, 2]), 6, "dp")
    assert sent == [[2, -4, 0]]
    assert len(positions) == 3
    assert sorted(sample for rows in positions for sample in rows) == [0, 1, 2, 3]


def test_a_rank_of_verl_without_a_plan_is_in_the_collective(another_rank):
    """It would raise alone, and the others would wait for it in the next one."""
    sent = another_rank(3, -8, 0)
    with pytest.raises(OversizedSampleError, match=r"sample 0 \(9\).*capacity=9, which is max_token_len_per_gpu"):
        verl.rearrange_micro_batches(rows_of([9, 1]), 6, "dp")
    assert sent == [[0, -2, 1]]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ((3, -8, 1), "another rank has no micro-batches"),
        ((9, -16, 0), "one rank needs 9 micro-batches and another has 4 samples"),
    ],
)
def test_all_ranks_of_verl_raise_if_one_does(another_rank, facts, words):
    another_rank(*facts)
    with pytest.raises(InvalidLengthsError, match=words):
        verl.rearrange_micro_batches(rows_of([3, 3, 2, 2]), 6, "dp")


def test_cheap_micro_batches_of_verl_are_at_the_ends():
    """Where the stages of a pipeline wait for the first and the last; in falling order on request."""
    batch = rows_of([6, 5, 4, 3, 2])
    ends, falling = (
        [
            int(row["attention_mask"].sum())
            for row in verl.rearrange_micro_batches(batch, 6, None, 5, True, None, is_on)[0]
        ]
        for is_on in (True, False)
    )
    assert (ends, falling) == ([2, 4, 6, 5, 3], [6, 5, 4, 3, 2])


def fake_slime(arguments="args, train_parallel_config, total_lengths, *, global_batch_size, rollout_indices"):
    """``slime.utils.dp_schedule`` and the class of ``slime.ray.rollout`` that holds its function."""
    names = {"__name__": "slime.utils.dp_schedule"}
    exec(f"def build_dp_schedule({arguments}): return 'theirs'", names)
    schedule = module_of("slime.utils.dp_schedule", build_dp_schedule=names["build_dp_schedule"])
    module_of("slime")
    module_of("slime.utils", dp_schedule=schedule)
    rollout = {"build_dp_schedule": schedule.build_dp_schedule, "__name__": "slime.ray.rollout"}
    exec(
        "class RolloutManager:\n"
        "    def split(self, args, lengths):\n"
        "        parallel = dict(dp_size=2, cp_size=1, vpp_size=1, microbatch_group_size_per_vp_stage=1)\n"
        "        rollouts = range(len(lengths))\n"
        "        return build_dp_schedule(args, parallel, lengths, global_batch_size=6, rollout_indices=rollouts)\n",
        rollout,
    )
    return rollout["RolloutManager"]


ARGS = SimpleNamespace(use_dynamic_batch_size=True, max_tokens_per_gpu=7)


def test_a_manager_of_slime_that_was_sent_by_value_is_reached(fakes):
    """Ray pickles the class, whose name in its module is an actor's: no attribute of a module is looked up again."""
    cloudpickle = pytest.importorskip("cloudpickle")
    manager = cloudpickle.loads(cloudpickle.dumps(fake_slime()))()
    assert manager.split(ARGS, [3, 3, 5, 6, 1, 1]) == "theirs"
    slime.install()
    slime.install()
    assert manager.split(ARGS, [3, 3, 5, 6, 1, 1])[0] == [[3, 1, 5], [2, 0, 4]]


def test_the_rollout_function_of_slime_installs_and_goes_on(fakes):
    """The path that is given on the command line: slime's own rollouts come out of it."""
    manager = fake_slime()()
    sglang = module_of("slime.rollout.sglang_rollout", generate_rollout=lambda *given, evaluation: (given, evaluation))
    module_of("slime.rollout", sglang_rollout=sglang)
    from brimful.integrations.slime_rollout import generate_rollout

    assert generate_rollout("args", 3, "source", evaluation=True) == (("args", 3, "source"), True)
    assert manager.split(ARGS, [3, 3, 5, 6, 1, 1]) != "theirs"


def test_a_slime_with_a_new_argument_keeps_its_own(fakes):
    manager = fake_slime("args, train_parallel_config, total_lengths, *, global_batch_size, rollout_indices, seed=0")()
    with pytest.raises(
        SettingsError, match=r"slime.utils.dp_schedule.build_dp_schedule takes seed, .* use slime's own"
    ):
        slime.install()
    assert manager.split(ARGS, [1] * 6) == "theirs"


class DynamicScheduler:
    """What was read of ``DefaultDynamicCPScheduler`` (branch dev, August 2026): its constructor."""

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank,
        cp_size,
        dp_size,
        microbatch_group_size_per_vp_stage,
        max_num_seqs=None,
        min_cp_size=1,
    ):
        self.max_seq_len_per_rank = max_seqlen_per_dp_cp_rank
        self.total_hdp_gpus = dp_size * cp_size
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.min_cp_size = min_cp_size


@pytest.mark.parametrize(("dp_size", "cp_size"), [(2, 4), (6, 4)])
@pytest.mark.parametrize("min_cp_size", [1, 2])
def test_the_dynamic_scheduler_of_megatron(fakes, dp_size, cp_size, min_cp_size):
    """What verl asserts of its groups: no rank empty, peers adjacent and aligned; each sample once, the budget kept."""
    schedule = module_of("megatron.core.datasets.data_schedule", DefaultDynamicCPScheduler=DynamicScheduler)
    for name in ("megatron", "megatron.core"):
        module_of(name)
    module_of("megatron.core.datasets", data_schedule=schedule)
    lengths = np.random.default_rng(0).lognormal(np.log(4000), 1, 256).clip(64, 32768).astype(int).tolist()
    scheduler = megatron.dynamic_cp_scheduler()(8192, cp_size, dp_size, None, min_cp_size=min_cp_size)
    seen = []
    for ranks in scheduler.get_groups_and_subsamples(list(enumerate(lengths))):
        assert len(ranks) == dp_size * cp_size
        degrees = {}
        for rank, ids in enumerate(ranks):
            peers = [peer for peer, others in enumerate(ranks) if others == ids]
            assert peers == list(range(peers[0], peers[0] + len(peers)))
            assert ids
            assert peers[0] % len(peers) == len(peers) % min_cp_size == 0
            degrees |= dict.fromkeys(ids, len(peers))
            assert rank in peers
        assert max(sum(lengths[sample] / degrees[sample] for sample in ids) for ids in ranks) <= 8192
        seen += degrees
    assert sorted(seen) == list(range(256))


def test_a_step_without_a_plan_is_left_to_megatron(fakes, logged):
    """One sample on six ranks, of which at most four may share it: theirs fills the others, ours would end the training."""
    fakes.setattr(
        DynamicScheduler, "get_groups_and_subsamples", lambda self, samples: ["theirs", samples], raising=False
    )
    schedule = module_of("megatron.core.datasets.data_schedule", DefaultDynamicCPScheduler=DynamicScheduler)
    for name in ("megatron", "megatron.core"):
        module_of(name)
    module_of("megatron.core.datasets", data_schedule=schedule)
    scheduler = megatron.dynamic_cp_scheduler()(64, 3, 2, None)
    assert scheduler.get_groups_and_subsamples([(0, 60)]) == ["theirs", [(0, 60)]]
    (line,) = logged
    assert line.startswith("Megatron-Core plans this step: ")


def test_stages_of_megatron_round_the_number_by_its_own_function(fakes):
    """Four micro-batches in a multiple of three: theirs splits groups of ranks, which ours never has to know."""
    schedule = module_of(
        "megatron.core.datasets.data_schedule",
        DefaultDynamicCPScheduler=DynamicScheduler,
        align_sample_id_groups=lambda groups, multiple: (len(groups), multiple),
    )
    for name in ("megatron", "megatron.core"):
        module_of(name)
    module_of("megatron.core.datasets", data_schedule=schedule)
    scheduler = megatron.dynamic_cp_scheduler()(8, 1, 2, 3)
    assert scheduler.get_groups_and_subsamples(list(enumerate([8] * 8))) == (4, 3)
