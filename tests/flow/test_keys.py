"""Each part of each key and fingerprint changes it: otherwise a cache, a plan or a state of other data is taken for one's own.

A key is a function of named parts, with a base value and another one of each. A part that a constructor takes, or a field
that settings have, and that no case here names, fails: so a new one cannot be forgotten.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from brimful import PackLoader, TokenBudgetBatches, open_source, plan_packs
from brimful.base.execute import Execution
from brimful.base.progress import Progress
from brimful.dynamic import TokenBudget
from brimful.dynamic.composed_batches import WindowBatches
from brimful.dynamic.online_window import Window
from brimful.encode.chat import ChatEncoder
from brimful.encode.encoded import EncodedSample
from brimful.encode.text import CompletionEncoder, TextEncoder
from brimful.encode.tokenizer_facts import TokenizerFacts
from brimful.lengths.table import LengthTable
from brimful.measure.measure_settings import MeasureSettings, provenance_of
from brimful.mixtures import Mixture
from brimful.plan import Alignment, PlanSettings
from brimful.rl import StepTrees, find_step_prefixes, plan_step
from brimful.sources.augmented import identity_of
from brimful.store.claim import JobSettings, PackJob, packs_per_shard
from brimful.testing.toys import toy_chat_encoder, toy_packs
from brimful.trees.plan.plan_trees import PlanTrees
from brimful.trees.prefixes import Prefixes

TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, "a": 2, "b": 3}, "unk_token": "<s>"},
}
TEMPLATE = "{{ tools|string if tools else '' }}{% for message in messages %}{{ message.role }} {{ message.content }} {{ strftime_now('%d') }} {% endfor %}"


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")

    def make(settings: Any = None, **options: Any) -> Any:
        backend = tokenizers.Tokenizer.from_str(json.dumps(settings or TOKENIZER))
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, **{"bos_token": "<s>", "eos_token": "</s>", **options}
        )

    return make


@dataclass(frozen=True)
class Key:
    """A key, what may be given, and what changes nothing in it.

    Attributes:
        of: makes the key.
        base, others: a value of each part, and another one, for which the key must differ.
        silent: parts that do not decide the content, each with a value that must leave the key as it is.
        names: of all parts; the function's if None.
    """

    of: Callable[..., Any]
    base: Mapping[str, Any]
    others: Mapping[str, Any]
    silent: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names: frozenset[str] | None = None


def fields_of(settings: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(settings) if field.init)


def arguments_of(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def encoders(tokenizer: Any) -> dict[str, Key]:
    """Encoders, by what decides tokens and labels."""
    other = json.loads(json.dumps(TOKENIZER))
    other["model"]["vocab"] |= {"a": 3, "b": 2}
    base, changed = {"tokenizer": tokenizer()}, {"tokenizer": tokenizer(other)}
    special = {"bos": False, "eos": False}
    return {
        "documents": Key(
            lambda **parts: TextEncoder(**parts).fingerprint,
            {**base, "bos": True, "eos": True},
            {**changed, **special},
            names=arguments_of(TextEncoder),
        ),
        "completions": Key(
            lambda **parts: CompletionEncoder(**parts).fingerprint,
            {**base, "bos": True, "eos": True, "separator": "", "train_on": "completion"},
            {**changed, **special, "separator": "\n", "train_on": "all"},
            names=arguments_of(CompletionEncoder),
        ),
        "chats": Key(
            lambda **parts: ChatEncoder(**parts).fingerprint,
            {**base, "chat_template": TEMPLATE, "train_on": "all", "date": "2026-11-01", "template_kwargs": {"x": 1}},
            {
                **changed,
                "chat_template": TEMPLATE + " ",
                "train_on": "assistant",
                "date": "2026-11-02",
                "template_kwargs": {"x": 2},
                "system": "Be brief.",
                "reasoning": "drop",
            },
            names=arguments_of(ChatEncoder),
        ),
    }


def facts_of_tokenizers(tokenizer: Any) -> dict[str, Key]:
    def print_of(**settings: Any) -> Any:
        return TokenizerFacts.of(tokenizer(settings)).fingerprint

    others = {
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "added_tokens": [
            {
                "id": 4,
                "content": "<x>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "model": {**TOKENIZER["model"], "unk_token": "a"},  # type: ignore[dict-item]
    }
    others |= {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
    return {"a tokenizer": Key(print_of, TOKENIZER, others, {"version": "1.0"}, frozenset(TOKENIZER))}


LENGTHS = np.array([5, 3, 4, 6, 2], dtype=np.int32)


def plans() -> dict[str, Key]:
    others = {
        "capacity": 9,
        "overflow": "drop",
        "no_target": "drop",
        "algorithm": "next_fit",
        "budgets": {"rows": 3},
        "alignment": Alignment(segment=2),
        "min_fill": 0.5,
        "seed": 1,
        "epoch": 1,
        "share": "prefixes",
        "draw": Mixture(weights={"a": 1.0, "b": 2.0}),
    }
    plan = plan_packs(LENGTHS, capacity=8)

    def array_fingerprint(**parts: Any) -> Any:
        return replace(plan, **parts)._array_fingerprint()

    def of_table(**parts: Any) -> Any:
        return LengthTable(
            {"tokens": parts["tokens"], "patches": parts["patches"]}, sharing=parts["sharing"]
        ).fingerprint

    order = np.arange(5)
    shared = np.array([0, 2, 0, 0, 1], dtype=np.int32)
    swapped = LENGTHS[::-1].copy()
    return {
        "settings of a plan": Key(
            lambda **parts: json.dumps(PlanSettings(**parts).as_dict(), sort_keys=True),
            {"capacity": 8},
            others,
            # A limit of time names no plan: what it found is in the plan's own fingerprint.
            {"time_limit": 5.0},
            fields_of(PlanSettings) - {"phases", "max_path", "num_packs"},
        ),
        "settings of phases": Key(
            lambda **parts: json.dumps(PlanSettings(capacity=8, algorithm="phased", **parts).as_dict()),
            {"phases": "finish"},
            {"phases": "top_n(n=8); finish"},
            names=frozenset({"phases"}),
        ),
        "a number of packs": Key(
            lambda **parts: json.dumps(PlanSettings(capacity=8, algorithm="spread", **parts).as_dict()),
            {"num_packs": 3},
            {"num_packs": 4},
            names=frozenset({"num_packs"}),
        ),
        "settings of trees": Key(
            lambda **parts: json.dumps(PlanSettings(capacity=8, share="prefixes", **parts).as_dict()),
            {},
            {"max_path": 7},
            names=frozenset({"max_path"}),
        ),
        "a plan": Key(
            array_fingerprint,
            {},
            {
                "capacity": 9,
                "sample_ids": plan.sample_ids[::-1].copy(),
                "offsets": np.array([0, 1, *plan.offsets[2:]], dtype=plan.offsets.dtype),
                "starts": plan.starts + 1,
                "sharing": PlanTrees(np.full(len(plan.sample_ids), -1, dtype=np.int32)),
            },
            names=frozenset({"capacity", "sample_ids", "offsets", "starts", "sharing"}),
        ),
        "lengths": Key(
            of_table,
            {"tokens": LENGTHS, "patches": LENGTHS, "sharing": None},
            {"tokens": swapped, "patches": swapped, "sharing": Prefixes(order, shared)},
            names=frozenset({"tokens", "patches", "sharing"}),
        ),
        "prefixes": Key(
            lambda **parts: LengthTable({"tokens": LENGTHS}, sharing=Prefixes(**parts)).fingerprint,
            {"order": order, "shared": shared},
            {"order": order[[1, 0, 2, 3, 4]], "shared": np.array([0, 2, 0, 0, 0], dtype=np.int32)},
            names=frozenset({"order", "shared"}),
        ),
    }


def steps() -> dict[str, Key]:
    tokens = [[1, 2, 3, 4, 5], [1, 2, 3, 9, 9], [7] * 5, [1, 2, 3, 4, 6]]

    trees = plan_step([5] * 4, capacity=20, dp_world_size=1, prefixes=find_step_prefixes(tokens, least=2))
    forest = trees.trees
    assert forest is not None

    def print_of(**parts: Any) -> Any:
        lengths = parts.pop("lengths")
        return plan_step(lengths, **parts).fingerprint

    return {
        "a step": Key(
            print_of,
            {"lengths": [5, 5, 5, 5], "capacity": 10, "dp_world_size": 2},
            {
                "lengths": [5, 5, 5, 4, 4],
                "capacity": 11,
                "dp_world_size": 1,
                "min_micro_batches": 2,
                "prefixes": find_step_prefixes(tokens, least=2),
                "groups": [0, 0, 1, 1],
            },
            names=frozenset({"lengths", "capacity", "dp_world_size", "min_micro_batches", "prefixes", "groups"}),
        ),
        "a step of trees": Key(
            lambda **parts: replace(trees, trees=replace(forest, **parts)).fingerprint,
            {},
            {name: getattr(forest, name) + 1 for name in fields_of(StepTrees)},
            names=fields_of(StepTrees),
        ),
    }


ROWS = [{"text": "a b"}, {"text": "b"}, {"text": "a"}]


def sources() -> dict[str, Key]:
    def print_of(rows: Any = ROWS, **parts: Any) -> Any:
        return open_source(rows, **parts).fingerprint

    two = [
        {
            "text": "a",
            "other": "b",
            "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        }
    ]
    chats = [
        {"messages": [{"role": role, "content": str(turn)} for turn in range(2) for role in ("user", "assistant")]}
    ]
    return {
        "rows": Key(
            print_of,
            {"rows": ROWS},
            {"rows": [{"text": "a b"}, {"text": "b"}, {"text": "a "}], "max_samples": 2},
            names=frozenset({"rows", "max_samples"}),
        ),
        "the order of rows": Key(print_of, {"rows": ROWS}, {"rows": ROWS[::-1]}, names=frozenset({"rows"})),
        "the number of rows": Key(print_of, {"rows": ROWS}, {"rows": ROWS[:2]}, names=frozenset({"rows"})),
        "how rows are read": Key(
            partial(print_of, two),
            {"format": "text"},
            {"format": "messages", "fields": {"text": "other"}, "ignore": ["messages"]},
            names=frozenset({"format", "fields", "ignore"}),
        ),
        "one sample for each turn": Key(
            partial(print_of, chats), {}, {"per_turn": True}, names=frozenset({"per_turn"})
        ),
        "a question before each image": Key(
            partial(print_of, [{"image": "a.png", "caption": "a"}], media=True, format="caption"),
            {"prompt": "What?"},
            {"prompt": "Who?"},
            names=frozenset({"prompt"}),
        ),
    }


def measuring() -> dict[str, Key]:
    source = open_source([{"prompt": "a", "completion": "b"}])

    def key_of(version: int = 0, **parts: Any) -> Any:
        provenance = provenance_of(source, toy_chat_encoder(version), MeasureSettings(**parts))
        return json.dumps(provenance, sort_keys=True)

    return {
        "measured lengths": Key(
            key_of,
            {},
            {
                "version": 1,
                "budgets": ("tokens", "loss_tokens"),
                "targets": False,
                "share": "prefixes",
                "augmentation": {"crop": 1},
            },
            {
                "num_proc": 1,
                "cache_dir": "elsewhere",
                "execution": Execution(task_index=0, num_tasks=2),
                "progress": Progress(),
                "path": "lengths.arrow",
                "rejects_path": "rejects.jsonl",
                "on_mismatch": "rebuild",
                # Rejects are in the table, and a job that stops at them looks for them there.
                "on_bad_sample": "skip",
                # The source that is measured is augmented, and has them in its own settings.
                "transforms": (str,),
                # They count with ``share`` alone: below.
                "least_shared": 3,
                "share_within": "row",
            },
            fields_of(MeasureSettings) | {"version"},
        ),
        "measured prefixes": Key(
            partial(key_of, share="prefixes"),
            {},
            {"least_shared": 3, "share_within": np.zeros(1, dtype=np.int64)},
            names=frozenset({"least_shared", "share_within"}),
        ),
    }


def augmentations() -> dict[str, Key]:
    class Cut:
        def __init__(self, size: int) -> None:
            self.size = size

        def __call__(self, sample: Any) -> Any:
            return sample

    def transform(size: Any = 1, default: Any = 1, keyword: Any = 1, code: bool = False) -> Any:
        if code:
            return lambda sample, first=default, *, second=keyword: (sample, size, 0)
        return lambda sample, first=default, *, second=keyword: (sample, size)

    return {
        "a transform": Key(
            lambda **parts: identity_of(transform(**parts)),
            {"size": 1, "default": 1, "keyword": 1, "code": False},
            {"size": 2, "default": 2, "keyword": 2, "code": True},
            names=arguments_of(transform),
        ),
        "an object that is a transform": Key(
            lambda size: identity_of(Cut(size)), {"size": 1}, {"size": 2}, names=frozenset({"size"})
        ),
        "a partial function": Key(
            lambda size: identity_of(partial(transform, size)), {"size": 1}, {"size": 2}, names=frozenset({"size"})
        ),
        "samples with augmentation": Key(
            lambda **parts: open_source(ROWS).augmented([Cut(parts["size"])], seed=parts["seed"]).fingerprint,
            {"size": 1, "seed": 0},
            {"size": 2, "seed": 1},
            names=frozenset({"size", "seed"}),
        ),
    }


def claims() -> dict[str, Key]:
    """What two jobs must share to write into one directory."""

    def identity_of_job(tmp: str = "out", rows: Any = ROWS, version: int = 0, **parts: Any) -> Any:
        plan_parts = {name: parts.pop(name) for name in ("capacity", "seed", "groups") if name in parts}
        groups = plan_parts.pop("groups", None)
        table = LengthTable({"tokens": np.full(len(rows), 3, dtype=np.int32)})
        plan = plan_packs(table, groups=groups, **{"capacity": 8, **plan_parts})
        encoder = toy_chat_encoder(version)
        job = PackJob(open_source(rows), encoder, tmp, JobSettings(**parts), None, None)  # type: ignore[arg-type]
        per_shard = packs_per_shard(plan, job.settings.shard_bytes)
        return json.dumps(job.identity(plan, per_shard), sort_keys=True)

    return {
        "the claim of a directory": Key(
            identity_of_job,
            {"rows": ROWS, "capacity": 8, "seed": 0},
            {
                "rows": ROWS[::-1],
                "version": 1,
                "capacity": 9,
                "seed": 1,
                "groups": [0, 0, 1],
                "shard_bytes": 40,
            },
            {
                "num_proc": 1,
                "cache_dir": "elsewhere",
                "execution": Execution(task_index=0, num_tasks=2),
                "progress": Progress(),
                "notes": {"name": "a"},
                "on_bad_sample": "skip",  # in the plan, as the samples that it leaves out
                "least_shared": 3,  # likewise, in the lengths
                "share_within": "row",
                "media_storage": "references",  # of a job with media: in its own identity
            },
            (fields_of(JobSettings)) | {"rows", "version", "capacity", "seed", "groups"},
        )
    }


def states() -> dict[str, Key]:
    """What must be equal where a position is taken up again: all of the state but the position."""

    def head_of(state: dict[str, Any]) -> str:
        position = ("epoch", "step", "places", "shapes", "shape", "checksum")
        return json.dumps({name: state[name] for name in sorted(state) if name not in position})

    def packs(count: int = 5, **parts: Any) -> str:
        return head_of(PackLoader(toy_packs(count), list, **parts).state_dict())

    def batches(kind: Any, lengths: Any = (5, 3, 4), **parts: Any) -> str:
        batching = parts.pop("batching")
        encoded = [EncodedSample(np.arange(length, dtype=np.int32), np.ones(length, dtype=bool)) for length in lengths]
        return head_of(kind(encoded, batching, list, lengths=lengths, **parts).state_dict())

    anywhere = {"dp_rank": 1, "dp_world_size": 2, "micro_batches": 2, "collate_fn": len}
    return {
        "the state of packs": Key(
            lambda collate_fn=None, **parts: packs(**parts),
            {},
            {"count": 6, "seed": 1, "tail": "drop", "costs": [1, 2, 3, 4, 5]},
            {**anywhere, "dp_rank": 0, "window_steps": 3, "packs_per_micro_batch": 2},
            arguments_of(PackLoader) - {"dataset"} | {"count"},
        ),
        "the state of packs by their costs": Key(
            partial(packs, costs=[1, 2, 3, 4, 5]), {}, {"window_steps": 3}, names=frozenset({"window_steps"})
        ),
        "the state of micro-batches by tokens": Key(
            partial(batches, TokenBudgetBatches),
            {"batching": TokenBudget(8)},
            {"batching": TokenBudget(9), "lengths": [5, 3, 5], "seed": 1, "tail": "drop"},
            names=frozenset({"batching", "lengths", "seed", "tail"}),
        ),
        "the state of windows": Key(
            partial(batches, WindowBatches),
            {"batching": Window(8, size=3)},
            {"batching": Window(8, size=2), "lengths": [5, 3, 5], "seed": 1, "tail": "drop"},
            names=frozenset({"batching", "lengths", "seed", "tail"}),
        ),
    }


def all_keys(tokenizer: Any) -> dict[str, Key]:
    made = [
        encoders(tokenizer),
        facts_of_tokenizers(tokenizer),
        plans(),
        steps(),
        sources(),
        measuring(),
        augmentations(),
        claims(),
        states(),
    ]
    return {name: key for keys in made for name, key in keys.items()}


NAMES = [
    *(
        "documents",
        "completions",
        "chats",
        "a tokenizer",
        "settings of a plan",
        "settings of phases",
        "a number of packs",
        "settings of trees",
    ),
    *(
        "a plan",
        "lengths",
        "prefixes",
        "a step",
        "a step of trees",
        "rows",
        "the order of rows",
        "the number of rows",
        "how rows are read",
    ),
    *(
        "one sample for each turn",
        "a question before each image",
        "measured lengths",
        "measured prefixes",
        "a transform",
    ),
    *("an object that is a transform", "a partial function", "samples with augmentation", "the claim of a directory"),
    *(
        "the state of packs",
        "the state of packs by their costs",
        "the state of micro-batches by tokens",
        "the state of windows",
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_each_part_changes_the_key(tokenizer, name):
    key = all_keys(tokenizer)[name]
    known = {*key.base, *key.others, *key.silent}
    assert known == (known if key.names is None else key.names)
    made = {"as it is": key.of(**key.base)}
    assert key.of(**key.base) == made["as it is"]
    for part, value in key.others.items():
        made[part] = key.of(**{**key.base, part: value})
    for one, other in combinations(made, 2):
        assert made[one] != made[other], (one, other)
    for part, value in key.silent.items():
        assert key.of(**{**key.base, part: value}) == made["as it is"], part


def test_no_key_is_left_out(tokenizer):
    assert list(all_keys(tokenizer)) == NAMES
