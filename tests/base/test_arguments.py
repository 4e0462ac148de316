"""What a careless call says: one line of ours that names the argument, what was given, and what it takes."""

# mypy: disable-error-code="arg-type, call-arg, list-item"

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from brimful import (
    ChatEncoder,
    CostModel,
    LengthTable,
    PackedDataset,
    PackLoader,
    Plan,
    TextEncoder,
    TokenBudgetBatches,
    measure_lengths,
    open_packs,
    open_source,
    pack_dataset,
    plan_packs,
    write_packs,
)
from brimful.base.arguments import as_settings, option, settings_from
from brimful.dynamic import TokenBudget
from brimful.errors import BrimfulError, SettingsError, WrongTypeError
from brimful.report.store_check import check_store
from brimful.stream import LazyShardedDataset, Lookahead, PackingProducer
from brimful.testing.toys import toy_chat_encoder, toy_pack

ROWS = [{"question": "1+1?", "answer": "2"}] * 6


class Made(NamedTuple):
    """What careless calls are made with."""

    folder: str
    source: Any
    encoder: Any
    plan: Plan
    packs: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    source, encoder = open_source(ROWS), toy_chat_encoder()
    pack_dataset(source, encoder, folder / "packs", capacity=64, cache_dir=folder / "cache")
    plan = Plan.open(folder / "packs" / "plan.arrow")
    return Made(str(folder), source, encoder, plan, str(folder / "packs"))


MISTAKES: dict[str, tuple[Callable[[Made], Any], str]] = {
    "a path for lengths": (
        lambda m: plan_packs("a.npy", capacity=8),
        "lengths must be whole numbers, one for each sample, and is 'a.npy': open a file of lengths by LengthTable.open",
    ),
    "a source for lengths": (lambda m: plan_packs(m.source, capacity=8), "and is a Source: open a file of lengths"),
    "token ids for lengths": (
        lambda m: plan_packs([[1, 2, 3], [4, 5]], capacity=8),
        "and the one of sample 0 is a list of 3: give the number of its tokens",
    ),
    "equally long token ids": (
        lambda m: plan_packs([[1, 2], [4, 5]], capacity=8),
        "and the one of sample 0 is a list of 2",
    ),
    "a missing length": (lambda m: plan_packs([1, None], capacity=8), "the one of sample 1 is None"),
    "lengths of a table": (
        lambda m: LengthTable.from_lengths([[1], [2, 3]]),
        "tokens must be whole numbers, one for each sample, and the one of sample 0 is a list of 1",
    ),
    "capacity by place": (
        lambda m: plan_packs([1, 2], 8),
        "plan_packs: too many positional arguments: it is called as plan_packs(lengths, *, capacity)",
    ),
    "no capacity": (
        lambda m: plan_packs([1, 2]),
        "missing a required argument: 'capacity': it is called as plan_packs(lengths, *, capacity)",
    ),
    "a name nearly right": (
        lambda m: plan_packs([1, 2], max_len=8),
        "plan_packs got an unexpected keyword argument 'max_len': did you mean max_length?",
    ),
    "a name that is nothing": (
        lambda m: Lookahead(capacity=8, size=2, max_wait=4, zzz=1),
        "Lookahead got an unexpected keyword argument 'zzz'; it has capacity, size,",
    ),
    "a rank for a data set": (
        lambda m: PackedDataset(m.packs, dp_rank=0, dp_world_size=2),
        "no argument 'dp_rank': packs are divided by PackLoader(dataset, dp_rank=…, dp_world_size=…)",
    ),
    "a folder of a fork": (
        lambda m: PackedDataset(data_dir=m.packs),
        "no argument 'data_dir': name the pack store by the first argument, directory",
    ),
    "a rank for a stream": (
        lambda m: LazyShardedDataset(m.folder, dp_rank=0),
        "no argument 'dp_rank': leave it out: packs have global numbers",
    ),
    "a folder of a stream": (
        lambda m: LazyShardedDataset(data_dir=m.folder),
        "no argument 'data_dir': name the stream by the first argument, directory",
    ),
    "a template for a stream": (
        lambda m: LazyShardedDataset(m.folder, template=m.encoder),
        "no argument 'template': `brimful produce` encodes raw rows",
    ),
    "a template for a producer": (
        lambda m: PackingProducer(m.source, template=m.encoder, capacity=8),
        "no argument 'template': name what encodes by the second argument, encoder",
    ),
    "a folder for a producer": (
        lambda m: PackingProducer(m.source, m.encoder, output_dir=m.folder, capacity=8),
        "no argument 'output_dir': name the stream by the third argument, directory",
    ),
    "swapped numbers": (lambda m: plan_packs(8, capacity=[1, 2]), "capacity must be a whole number and is [1, 2]"),
    "a list of algorithms": (
        lambda m: plan_packs([1], capacity=8, algorithm=["ffd"]),
        "algorithm must be a name and is a list of 1",
    ),
    "budgets as text": (
        lambda m: plan_packs([1], capacity=8, budgets="samples=2"),
        "budgets must be a mapping such as {'patches': 4096} and is 'samples=2'",
    ),
    "phases as a list": (
        lambda m: plan_packs([1], capacity=8, algorithm="phased", phases=["half"]),
        "phases must be a Recipe, or its text such as 'half; finish' and is a list of 1",
    ),
    "min_fill None": (
        lambda m: plan_packs([1], capacity=8, min_fill=None),
        "min_fill must be a number from 0 to 1, a share of the capacity, and is None",
    ),
    "a number for a tokenizer": (
        lambda m: ChatEncoder(42),
        "tokenizer must be a directory, a hub id, or a tokenizer of Transformers and is 42",
    ),
    "no tokenizer": (
        lambda m: TextEncoder(None),
        "tokenizer must be a directory, a hub id, or a tokenizer of Transformers and is None",
    ),
    "template arguments as a list": (
        lambda m: ChatEncoder("x", template_kwargs=[1]),
        "template_kwargs must be a mapping and is a list of 1",
    ),
    "a number for a template": (
        lambda m: ChatEncoder("x", chat_template=5),
        "chat_template must be a Jinja template or the path of one and is 5",
    ),
    "a text for a sample": (
        lambda m: m.encoder.encode("hello"),
        "sample must be a Sample and is 'hello': take it from open_source(…)",
    ),
    "fields as a list": (
        lambda m: open_source(ROWS, fields=["question"]),
        "fields must be a mapping such as {'messages': 'dialogue'} and is a list of 1",
    ),
    "fields as text": (
        lambda m: open_source(ROWS, fields="question"),
        "fields must be a mapping such as {'messages': 'dialogue'} and is 'question'",
    ),
    "a number for the cache": (
        lambda m: open_source(ROWS, cache_dir=5),
        "cache_dir must be the path of a directory and is 5",
    ),
    "source and encoder swapped": (
        lambda m: measure_lengths(m.encoder, m.source),
        "a source is a path, a list of rows, a DataFrame or a data set of datasets, not",
    ),
    "a number for an encoder": (
        lambda m: measure_lengths(m.source, 42),
        "tokenizer must be a directory, a hub id, or a tokenizer of Transformers and is 42",
    ),
    "a sample by name": (lambda m: m.source["a"], "a sample must be named by its number and is 'a'"),
    "workers as text": (
        lambda m: write_packs(m.plan, m.source, m.encoder, m.folder + "/w", num_proc="4"),
        "num_proc must be a whole number and is '4'",
    ),
    "a path for a plan": (
        lambda m: write_packs(m.packs + "/plan.arrow", m.source, m.encoder, m.folder + "/w"),
        "plan must be a Plan and is '",
    ),
    "plan and source swapped": (
        lambda m: write_packs(m.source, m.plan, m.encoder, m.folder + "/w"),
        "plan must be a Plan and is a Source: the call is write_packs(plan, source, encoder, directory)",
    ),
    "no directory": (
        lambda m: pack_dataset(m.source, m.encoder, None, capacity=64),
        "directory must be a path or a URL and is None",
    ),
    "no plan file": (lambda m: Plan.open(None), "path must be the path of a plan and is None"),
    "a plan file that is not there": (lambda m: Plan.open("no.arrow"), "no.arrow: no such file"),
    "no table file": (lambda m: LengthTable.open(None), "path must be the path of a length table and is None"),
    "no store": (lambda m: open_packs(None), "directory must be the path of a pack store and is None"),
    "a list of stores": (
        lambda m: open_packs([m.packs]),
        "directory must be the path of a pack store and is a list of 1",
    ),
    "a number for a store": (lambda m: PackedDataset(42), "directory must be the path of a pack store and is 42"),
    "a plan for a store": (
        lambda m: PackedDataset(m.plan),
        "directory must be the path of a pack store and is a Plan: use from_plan for a plan",
    ),
    "nothing to check": (lambda m: check_store(None), "directory must be a path or a URL and is None"),
    "from_plan with a file": (
        lambda m: PackedDataset.from_plan(m.source, m.encoder, "plan.arrow"),
        "plan must be a Plan and is 'plan.arrow': open a file by Plan.open",
    ),
    "from_plan swapped": (
        lambda m: PackedDataset.from_plan(m.encoder, m.source, m.plan),
        "a source is a path, a list of rows, a DataFrame or a data set of datasets, not",
    ),
    "a pack by name": (
        lambda m: PackedDataset(m.packs)["a"],  # type: ignore[call-overload]
        "a pack must be named by its number and is 'a'",
    ),
    "a loader of a path": (lambda m: PackLoader(m.packs), "dataset must be a PackedDataset or a PackStore and is '"),
    "a loader of a number": (
        lambda m: PackLoader(42),
        "dataset must be a PackedDataset or a PackStore and is 42: open a directory by PackedDataset",
    ),
    "a collator by name": (
        lambda m: PackLoader(PackedDataset(m.packs), "trl"),
        "collate_fn must be a function of a list of packs, such as PackCollator() and is 'trl'",
    ),
    "a rank as text": (
        lambda m: PackLoader(PackedDataset(m.packs), dp_rank="0"),
        "dp_rank must be a whole number and is '0'",
    ),
    "batch_size for a loader": (
        lambda m: PackLoader(PackedDataset(m.packs), batch_size=2),
        "PackLoader got an unexpected keyword argument 'batch_size'",
    ),
    "no state": (
        lambda m: PackLoader(PackedDataset(m.packs)).load_state_dict(None),
        "state must be what state_dict returned and is None",
    ),
    "an epoch as text": (
        lambda m: PackLoader(PackedDataset(m.packs)).set_epoch("1"),
        "epoch must be a whole number and is '1'",
    ),
    "a number for a budget": (
        lambda m: TokenBudgetBatches([toy_pack([3])], 8),
        "batching must be a TokenBudget, a SampleCount or a Window and is 8",
    ),
    "a number for samples": (
        lambda m: TokenBudgetBatches(42, TokenBudget(8)),
        "source must be samples by index or as a stream and is 42",
    ),
    "a name for a config": (
        lambda m: CostModel.of_model("qwen"),
        "config must be the mapping of a config.json and is 'qwen'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_careless_call_is_one_line_that_names_the_argument(mistake: str, made: Made) -> None:
    """Without it these are errors of NumPy, os and attribute look-ups, deep in code that the caller never saw."""
    call, said = MISTAKES[mistake]
    with pytest.raises(BrimfulError) as caught:
        call(made)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_careless_calls_of_torch(made: Made) -> None:
    """Without it a batch of one bare pack, an unknown dialect, or a model given as its name fails deep inside."""
    pytest.importorskip("torch")
    from brimful import PackCollator, collator_for, verify_packing
    from brimful.integrations.trainers import choose_attention, evaluate_samples, one_by_one

    calls: dict[str, Callable[[], Any]] = {
        "PackCollator: too many positional arguments: it is called as PackCollator()": lambda: PackCollator("trl"),
        "dialect must be a name and is 5": lambda: PackCollator(dialect=5),
        "a batch must be a list of packs or samples and is 42": lambda: PackCollator()(42),
        "a batch must be a list of packs or samples and is a Pack: one": lambda: PackCollator()(toy_pack([3])),
        "is a dict of 1: one of them goes in a list too": lambda: PackCollator()({"input_ids": [1]}),
        "model must be a model of Transformers, or its configuration and is 42": lambda: collator_for(42),
        "model must be a model of Transformers, or its configuration and is 'q'": lambda: choose_attention("q"),
        "model must be a torch module and is a PackCollator: the call is verify": lambda: verify_packing(
            PackCollator(), 1, []
        ),
        "model must be a torch module and is 1": lambda: evaluate_samples(1, made.packs, PackCollator()),
        "packs must be a PackedDataset, a PackStore or a list of packs and is 1": lambda: one_by_one(1),
    }
    for said, call in calls.items():
        with pytest.raises(WrongTypeError) as caught:
            call()
        assert said in str(caught.value)


@pytest.mark.parametrize("name", ["max_length", "packing_length", "seq_length"])
def test_capacity_is_known_by_the_names_that_trainers_give_it(name: str, tmp_path: Path) -> None:
    """Without it max_length, the word of TRL and of our own command line, is an unexpected argument."""
    assert plan_packs([3, 3, 5], **{name: 7}).fingerprint == plan_packs([3, 3, 5], capacity=7).fingerprint
    planner = Lookahead(**{name: 10}, size=4, max_wait=8)
    assert (
        planner.add(np.arange(2), np.array([7, 3])).as_lists()
        == Lookahead(capacity=10, size=4, max_wait=8).add(np.arange(2), np.array([7, 3])).as_lists()
    )
    summary = pack_dataset(open_source(ROWS), toy_chat_encoder(), tmp_path / name, **{name: 64})
    assert summary.capacity == 64


@pytest.mark.parametrize("call", [plan_packs, Lookahead, pack_dataset])
def test_two_names_for_the_capacity_are_refused(call: Callable[..., Any]) -> None:
    """Without it one of the two would win in silence."""
    with pytest.raises(SettingsError, match="capacity and max_length are one setting: give one of them"):
        call(capacity=8, max_length=8)


@pytest.mark.parametrize("function", [plan_packs, pack_dataset, Lookahead, PackLoader])
def test_signatures_show_arguments_and_no_keywords_of_any_name(function: Callable[..., Any]) -> None:
    """Without it editors and help() would show ``*args, **kwargs`` where the arguments belong."""
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


def test_a_wrong_type_is_also_the_error_that_python_raises_for_it() -> None:
    """Without it ``except TypeError`` around a call would no longer catch what it caught."""
    with pytest.raises(TypeError):
        open_packs(None)


def test_packs_are_copied_pickled_and_compared() -> None:
    """Without it the line for collators that ask a pack for its ``vars`` would be in the way of all other errors."""
    pack = toy_pack([4, 2])
    for again in (copy.copy(pack), copy.deepcopy(pack), pickle.loads(pickle.dumps(pack))):
        assert again == pack
    assert pack != toy_pack([4, 3])
    assert pack != 1
    assert "input_ids" in dir(pack)


@dataclass(frozen=True)
class Box:
    width: int = option(MISSING, "Its width.", "CM")
    depth: int = option(3, "Its depth.", "CM", "--deep", minimum=1)
    volume: int = field(init=False, default=0)


def test_settings_are_an_object_or_keywords_or_both() -> None:
    """Without it a keyword next to an object of settings is ignored."""
    box = as_settings(Box, None, {"width": 2})
    assert (box, as_settings(Box, box, {})) == (Box(2, 3), box)
    assert as_settings(Box, box, {"depth": 5}) == Box(2, 5)


def test_a_required_setting_is_named() -> None:
    with pytest.raises(WrongTypeError, match=r"give width, or settings=Box\(width=…\)"):
        as_settings(Box, None, {"depth": 5})


def test_values_of_others_are_left_out() -> None:
    """Without it each command lists the names of the settings that it passes on."""
    assert settings_from(Box, {"width": 2, "volume": 9, "color": "red"}, depth=4) == Box(2, 4)


def test_the_help_of_a_field() -> None:
    (help,) = (
        item["help"]
        for name, item in ((f.name, f.metadata) for f in Box.__dataclass_fields__.values())
        if name == "depth"
    )
    assert (help.text, help.form, help.flags, help.minimum) == ("Its depth.", "CM", ("--deep",), 1)
