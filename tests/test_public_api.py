"""What users import, and what they read about it."""

import ast
import contextlib
import doctest
import functools
import importlib
import inspect
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import brimful
from brimful.base.wording import setting
from brimful.clusters import LengthCache
from brimful.errors import BrimfulError, MissingExtraError

NAMES = [
    "open_source", "ChatEncoder", "TextEncoder", "CompletionEncoder", "TokenEncoder", "encoder_for",
    "measure_lengths", "LengthTable", "plan_packs", "PlanSettings", "Plan", "CostModel", "write_packs", "pack_dataset",
    "open_packs", "PackedDataset", "PackLoader", "TokenBudgetBatches", "Padding", "PackCollator", "collator_for",
    "export_packs", "verify_packing", "BrimfulError",
]  # fmt: skip
"""The face of the package, in the order of the flow."""

OTHER_NAMES = {
    "brimful.sources": ["Sample", "Source"],
    "brimful.encode": ["EncodedSample", "EncodedSamples", "Encoder", "TrainOn"],
    "brimful.plan": ["Overflow", "plan_with", "schedule_packs"],
    "brimful.rl": [
        "ContextParallelPlan",
        "SampleColumn",
        "StepPlan",
        "pack_step",
        "plan_context_parallel",
        "plan_step",
        "restore_tokens",
        "split_for_context_parallel",
        "warm_up",
    ],
    "brimful.store": ["PackSummary"],
    "brimful.report.store_check": ["check_store"],
    "brimful.stream": ["LazyShardedDataset", "Lookahead", "PackingProducer", "StreamDataset", "StreamLoader"],
    "brimful.dynamic": ["SampleCount", "TokenBudget", "Warmup"],
    "brimful.serve": ["Pack", "PackStore"],
    "brimful.clusters": ["LengthCache", "SharedPackedDataset", "SharedPlan", "broadcast_plan", "shared_plan"],
    "brimful.collate": ["Normaliser", "PackedBatch", "per_sample_loss"],
    "brimful.integrations.trainers": ["choose_attention", "evaluate_samples", "one_by_one"],
    "brimful.integrations.export": ["check_export"],
    "brimful.verify": ["VerifyReport", "verify_context_parallel"],
}
"""Names of the packages that users import from."""

PLACES = dict.fromkeys(NAMES, "brimful") | {name: place for place, names in OTHER_NAMES.items() for name in names}
"""Where each public name is imported from."""


def public(name):
    """A public name, from its place."""
    return getattr(importlib.import_module(PLACES[name]), name)


def test_public_names_are_these():
    """Adding or losing a name is a decision, not an accident."""
    assert len(NAMES) == 24
    assert brimful.__all__ == [*NAMES, "__version__"]
    assert sorted(dir(brimful)) == sorted(brimful.__all__)


def test_type_checkers_see_the_same_names():
    """They read imports, not the table."""
    tree = ast.parse(Path(brimful.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    assert sorted(str(alias.asname) for node in imports for alias in node.names) == sorted(NAMES)


@pytest.mark.parametrize("place", OTHER_NAMES)
def test_names_are_public_where_the_page_says(place):
    """What no `__all__` has is on no page of the API."""
    assert set(OTHER_NAMES[place]) <= set(importlib.import_module(place).__all__)


def test_every_public_name_exists_and_explains_itself():
    """A lazy name that cannot be resolved fails only at a user's desk."""
    assert [name for name in PLACES if len(inspect.getdoc(public(name)) or "") <= 20] == []


@pytest.mark.parametrize("place", ["brimful.integrations.trainers", "brimful.preferences", "brimful.stream"])
def test_names_that_are_imported_at_their_first_use_exist(place):
    """A module that was renamed under such a table is noticed by no import."""
    pytest.importorskip("torch")
    module = importlib.import_module(place)
    for name in module.__all__:
        with contextlib.suppress(MissingExtraError):  # a trainer that is not installed
            assert getattr(module, name) is not None


@pytest.fixture(scope="module")
def instances(tmp_path_factory):
    """One of each public class, and what each public function that makes an object gives."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    from brimful.cli.demo.toy_model import train_tokenizer
    from brimful.clusters import shared_plan
    from brimful.collate import Normaliser
    from brimful.dynamic import SampleCount, TokenBudget, Warmup
    from brimful.encode import EncodedSamples, TrainOn
    from brimful.integrations.export import check_export
    from brimful.integrations.trainers import choose_attention, one_by_one
    from brimful.plan import Overflow
    from brimful.report.store_check import check_store
    from brimful.rl import (
        SampleColumn,
        pack_step,
        plan_context_parallel,
        plan_step,
        restore_tokens,
        split_for_context_parallel,
    )
    from brimful.stream import LazyShardedDataset, Lookahead, PackingProducer, StreamDataset, StreamLoader
    from brimful.testing.toys import toy_chat_encoder, toy_pack, toy_packs, toy_stream
    from brimful.verify import VerifyReport, verify_context_parallel
    from brimful.verify.verify_report import CheckResult, Status

    home = tmp_path_factory.mktemp("home")
    train_tokenizer(["one two three"], home / "tokenizer", vocab_size=259)
    tokenizer, encoder = str(home / "tokenizer"), toy_chat_encoder()
    source = brimful.open_source([{"prompt": "1+1?", "completion": "2"}, {"prompt": "2+2?", "completion": "4"}])
    table = brimful.measure_lengths(source, encoder, cache_dir=home)
    plan = brimful.plan_packs(table, capacity=64)
    summary = brimful.pack_dataset(source, encoder, home / "packs", capacity=64, cache_dir=home)
    store = brimful.open_packs(home / "packs")
    config = transformers.LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    step = plan_step([3, 3, 5, 6, 1, 1], capacity=7, dp_world_size=2)
    shared = plan_context_parallel([16, 4, 4, 3, 1], max_tokens_per_rank=8, world_size=4)
    ranks = shared_plan(source, encoder, plan.settings, directory=home / "shared", cache_dir=home, num_epochs=1)
    ranks.close()
    passed = tuple(CheckResult(check, Status.PASS, attention="sdpa") for check in ("isolation", "loss", "training"))
    return {
        "open_source": source, "Source": source, "Sample": source[0],
        "ChatEncoder": brimful.ChatEncoder(tokenizer), "TextEncoder": brimful.TextEncoder(tokenizer),
        "CompletionEncoder": brimful.CompletionEncoder(tokenizer), "TokenEncoder": brimful.TokenEncoder(),
        "encoder_for": brimful.encoder_for(source, tokenizer),
        "EncodedSample": encoder.encode(source[0]), "Encoder": encoder, "TrainOn": TrainOn.ALL,
        "measure_lengths": table, "LengthTable": table, "LengthCache": LengthCache(home / "lengths.arrow"), "plan_packs": plan, "Plan": plan, "plan_with": plan,
        "PlanSettings": plan.settings,
        "plan_step": step, "StepPlan": step, "plan_context_parallel": shared, "ContextParallelPlan": shared,
        "Overflow": Overflow.SPLIT, "CostModel": brimful.CostModel(linear=2.0, quadratic=1.0),
        "Lookahead": Lookahead(capacity=8, size=2, max_wait=1), "pack_dataset": summary,
        "PackSummary": summary, "check_store": check_store(home / "packs"), "open_packs": store,
        "PackingProducer": PackingProducer([{"text": "a"}], encoder, home / "stream", capacity=64),
        "Pack": store[0], "PackStore": store, "PackedDataset": brimful.PackedDataset(store),
        "PackLoader": brimful.PackLoader(store, dp_world_size=2),
        "StreamLoader": StreamLoader(toy_stream(home / "stream", [2, 2]), lanes=2),
        "StreamDataset": StreamDataset(StreamLoader(home / "stream", lanes=2)),
        "LazyShardedDataset": LazyShardedDataset(home / "stream", lanes=2),
        "TokenBudgetBatches": brimful.TokenBudgetBatches([store[0]], TokenBudget(64)),
        "shared_plan": ranks, "SharedPlan": ranks, "SharedPackedDataset": ranks.dataset(),
        "EncodedSamples": EncodedSamples(source, encoder),
        "TokenBudget": TokenBudget(64, warmup=Warmup(steps=3, start=2)),
        "SampleCount": SampleCount(2), "Warmup": Warmup(steps=3),
        "PackedBatch": brimful.PackCollator().rows([toy_pack([3, 2])])[0], "Padding": brimful.Padding(to=8),
        "PackCollator": brimful.PackCollator(pad_to=8), "SampleColumn": SampleColumn("advantages", np.zeros(6)),
        "pack_step": pack_step(step, [[1] * size for size in (3, 3, 5, 6, 1, 1)], dp_rank=0)[0],
        "restore_tokens": restore_tokens([brimful.PackCollator().rows([toy_pack([3, 2])])[0]], [range(5)]),
        "split_for_context_parallel": split_for_context_parallel(
            brimful.PackCollator().rows([toy_pack([4, 8])])[0], cp_rank=0, cp_size=2
        ),
        "verify_context_parallel": verify_context_parallel([toy_pack([3, 2])], cp_sizes=[2]), "Normaliser": Normaliser.SQRT,
        "collator_for": brimful.collator_for(model), "choose_attention": choose_attention(model),
        "one_by_one": one_by_one(toy_packs(3)),
        "export_packs": brimful.export_packs(store, to="jsonl", directory=home / "exported"),
        "check_export": check_export(home / "exported", store),
        "VerifyReport": VerifyReport("a model", passed),
        "BrimfulError": BrimfulError(f"choose {setting('overflow', 'drop')}"),
        "segment": plan[0][0],
        "indexed": brimful.TokenBudgetBatches([encoder.encode(s) for s in source], TokenBudget(64),  # type: ignore[attr-defined]
                                              lengths=np.asarray(table)),
    }  # fmt: skip


NO_OBJECTS = {
    "schedule_packs",
    "warm_up",
    "write_packs",
    "per_sample_loss",
    "evaluate_samples",
    "verify_packing",
    "broadcast_plan",
}
"""Functions that give numbers and arrays, or an object that stands under its own name."""


@pytest.mark.parametrize("name", [name for name in PLACES if name not in NO_OBJECTS])
def test_every_public_object_says_what_it_is(name, instances):
    """In a notebook and in a log, ``<object at 0x7f…>`` and arrays over a page say nothing."""
    shown = repr(instances[name])
    kind = public(name)
    assert " at 0x" not in shown
    assert "\n" not in shown
    assert not any("\ue000" <= char <= "\uf8ff" for char in shown), "a setting still in its marks"
    assert len(shown) < 300 or name in ("pack_dataset", "PackSummary")
    if isinstance(kind, type) and not inspect.isabstract(kind):
        assert shown.removeprefix("<").startswith(kind.__name__)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Sample", "Sample(0, 2 messages)"),
        ("EncodedSample", "EncodedSample(22 tokens, 2 loss tokens)"),
        ("PackedDataset", "PackedDataset(1 pack, "),
        ("PackLoader", "PackLoader(1 pack, dp_rank 0 of 2, epoch 0, step 0 of 1)"),
        ("TokenBudgetBatches", "TokenBudgetBatches(0 samples of a stream taken, dp_rank 0 of 1, epoch 0, step 0, "),
        ("indexed", "TokenBudgetBatches(0 of 2 samples taken, dp_rank 0 of 1, epoch 0, step 0, 0 samples waiting)"),
        ("PackCollator", "PackCollator(dialect transformers, Padding(to=8, "),
        ("VerifyReport", "VerifyReport(3 findings, PASS: packing is right with sdpa)"),
        ("one_by_one", "one_by_one(3 samples of 3 packs)"),
        ("BrimfulError", "BrimfulError('choose overflow=\"drop\"')"),
        ("Encoder", "ToyEncoder(train_on assistant)"),
        ("ChatEncoder", "ChatEncoder(Tokenizer("),
        ("segment", "Segment(sample_id="),
    ],
)
def test_objects_show_their_counts(name, shown, instances):
    """What they hold, in numbers; where they stand, if they move."""
    assert repr(instances[name]).startswith(shown)


@pytest.mark.parametrize(
    "name", ["Plan", "PackStore", "PackedDataset", "SharedPackedDataset", "LengthTable", "one_by_one"]
)
def test_sequences_are_indexed_as_lists_are(name, instances):
    """From both ends; what lies outside is an IndexError, which ends a loop over a sequence."""
    rows = instances[name]
    size = len(rows)
    for index in (size, -size - 1):
        with pytest.raises(IndexError, match=rf"{index} is not in 0 … {size - 1}"):
            rows[index]
    with pytest.raises(TypeError):
        rows["tokens"]
    shown = [str(row) for row in rows]
    assert len(shown) == size >= 1
    assert str(rows[-1]) == shown[-1] == str(rows[np.int32(size - 1)])
    assert [str(row) for row in rows[::-1]] == shown[::-1]
    assert list(rows[size:]) == []


def test_an_unknown_name_is_an_attribute_error():
    """``hasattr`` must work on the lazy module."""
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        brimful.nonsense  # noqa: B018


def names_of_modules():
    """Every module."""
    names = [info.name for info in pkgutil.walk_packages(brimful.__path__, "brimful.")]
    return sorted(name for name in names if not name.endswith("__main__"))


MODULES = names_of_modules()


def has_prompts(name):
    """Whether the text of a module, unimported, has what an example begins with: half of them need no test then."""
    path = Path(brimful.__path__[0], *name.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ">>> " in file.read_text(encoding="utf-8")


MODULES_WITH_EXAMPLES = [name for name in MODULES if has_prompts(name)]


def imported(name):
    """A module, imported by the test that looks at it: all processes of pytest collect these tests, and one runs them."""
    try:
        return importlib.import_module(name)
    except MissingExtraError:
        return None  # a trainer that is not installed


@functools.cache
def examples(name):
    """The examples of a module, one test for each docstring that has some."""
    module = imported(name)
    return [] if module is None else [test for test in doctest.DocTestFinder().find(module) if test.examples]


@pytest.mark.parametrize("name", MODULES_WITH_EXAMPLES)
def test_examples_in_docstrings(name):
    """Examples are the first thing users copy; each runs."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in examples(name):
        runner.run(test)
    assert runner.summarize().failed == 0


def test_doctests_are_found():
    """The test above would pass on a package without examples."""
    assert sum(len(examples(name)) for name in MODULES_WITH_EXAMPLES) > 120
    assert [name for name in set(MODULES) - set(MODULES_WITH_EXAMPLES) if examples(name)] == []


def test_every_module_says_what_it_is_for():
    """The one-line map of the package."""
    assert [name for name in MODULES if (module := imported(name)) and not module.__doc__] == []
