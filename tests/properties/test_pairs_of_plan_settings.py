"""Each two settings of a plan together: refused in one line that the table here holds, or a plan that keeps every law.

The laws are counted here from the segments, with loops of their own: each sample packed as often as the account says,
dropped or cut; nothing over the capacity in any budget; sums of samples, tokens and targets; groups whole; the same plan
twice; and the same settings from their own JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from brimful import LengthTable, Plan, plan_packs
from brimful.base.ragged import offsets_of
from brimful.base.rng import generator
from brimful.base.tables import Ragged
from brimful.errors import BrimfulError
from brimful.lengths.targets import Targets, runs_of_masks
from brimful.mixtures import Mixture
from brimful.plan import ALGORITHMS, Alignment, PlanSettings
from tests.trees.plan.forests import paths_of, table_of

CAPACITY = 40

_draw = generator(seed=4, epoch=0, purpose="samples")
SAMPLES = [
    [token for letter in _draw.integers(int(letters), below=2).tolist() for token in [letter] * 8]
    for letters in 1 + _draw.integers(21, below=5)
] + [[0] * 8 + [1] * 48, [0] * 8 + [1] * 45, [7] * 47]
"""Samples of up to five letters that share their beginnings, and three that are longer than a pack."""

MASKS = [[number % 5 != 3 and place % 3 > 0 for place in range(len(tokens))] for number, tokens in enumerate(SAMPLES)]
"""Targets of the loss: every fifth sample has none."""

SOURCES = {"a": 14, "b": 10}
GROUPS = np.array([number // 2 if number < 18 else -1 for number in range(len(SAMPLES))])


def _table() -> LengthTable:
    table = table_of(SAMPLES, patches=2)
    masks = Ragged(np.concatenate([np.array(mask, dtype=bool) for mask in MASKS]), offsets_of([*map(len, MASKS)]))
    targets = Targets.of_runs(runs_of_masks(masks))
    return LengthTable({**table.budgets, "loss_tokens": targets.counts}, targets=targets, sharing=table.sharing)


TABLE = _table()

BASE: dict[str, Any] = {"capacity": CAPACITY, "overflow": "drop", "no_target": "keep"}

CHOICES: dict[str, dict[str, Any]] = {
    **{f"overflow {name}": {"overflow": name} for name in ("truncate", "truncate_left", "split")},
    "no_target drop": {"no_target": "drop"},
    **{f"algorithm {name}": {"algorithm": name} for name in ALGORITHMS if name != "auto"},
    "phases": {"algorithm": "phased", "phases": "top_n(n=8); finish"},
    "num_packs": {"algorithm": "spread", "num_packs": 17},
    "budget samples": {"budgets": {"samples": 2}},
    "budget squares": {"budgets": {"squares": 1700}},
    "budget squares below a pack": {"budgets": {"squares": 950}},
    "budget patches": {"budgets": {"patches": 2 * CAPACITY + 5}},
    "budget loss_tokens": {"budgets": {"loss_tokens": 30}},
    "alignment 4": {"alignment": 4},
    "alignment of the total": {"alignment": Alignment(total=16)},
    "min_fill": {"min_fill": 0.8},
    "time_limit": {"time_limit": 20.0},
    "seed None": {"seed": None},
    "seed": {"seed": 3},
    "epoch": {"epoch": 2},
    "share": {"share": "prefixes"},
    "max_path": {"max_path": 30},
    "mixture": {"draw": Mixture(weights={"a": 3.0, "b": 1.0}, stop="all_exhausted")},
    "mixture of packs": {"draw": Mixture(weights={"a": 1.0, "b": 1.0}, order="pack_then_mix", num_packs=9)},
    "mixture with replacement": {"draw": Mixture(weights={"a": 1.0, "b": 1.0}, replacement=True, num_tokens=300)},
    "mixture of the loss": {"draw": Mixture(weights={"a": 3.0, "b": 1.0}, weighting="loss")},
    "groups": {"groups": GROUPS},
}
"""A value of each setting that is not its default, by a name."""

ALGORITHM_CHOICES = {name for name, choice in CHOICES.items() if "algorithm" in choice}
BUDGETS = {name for name, choice in CHOICES.items() if "budgets" in choice}
DRAWS = {"mixture", "mixture of packs", "mixture with replacement"}
CUTS = {"overflow truncate", "overflow truncate_left", "overflow split"}

REFUSED: list[tuple[set[str], set[str], str]] = [
    (ALGORITHM_CHOICES, BUDGETS, "knows only tokens and would ignore a budget of"),
    (ALGORITHM_CHOICES, {"share"}, "packs samples one by one: use auto"),
    ({"algorithm next_fit", "algorithm concat_split"}, {"min_fill"}, "would break the order that"),
    ({"algorithm concat_split"}, {"alignment 4", "alignment of the total"}, "leaves no room for"),
    ({"algorithm concat_split"}, {"max_path"}, "cuts the stream of all samples where packs end"),
    ({"algorithm concat_split"}, DRAWS, "cuts samples anywhere, and mixture draws whole ones"),
    ({"algorithm concat_split"}, {"groups"}, "cuts samples anywhere, and groups stay whole"),
    ({"num_packs"}, {"min_fill"}, "packs samples again, into another number than num_packs=17"),
    ({"num_packs"}, DRAWS, "num_packs is for a plan of all samples"),
    ({"num_packs"}, {"max_path", "groups"}, "num_packs=17 is more than the"),
    (CUTS - {"overflow split"}, {"budget patches", "budget loss_tokens"}, "cuts tokens, not"),
    ({"overflow split"}, {"budget patches", "budget loss_tokens"}, "divides tokens, not"),
    (CUTS, {"budget squares below a pack"}, "cuts tokens, not squares"),
    (CUTS, {"groups"}, "cuts samples, and groups stay whole"),
    (CUTS - {"overflow truncate"}, {"share"}, "cuts off: use drop or truncate"),
    ({"overflow split"}, {"mixture of packs"}, "has parts of a sample in several packs"),
    ({"share"}, {"alignment 4"}, "makes segments that continue one another"),
    ({"share"}, {"min_fill"}, "empties the emptiest packs anyway"),
    ({"share"}, DRAWS, "packs each sample once, and mixture draws some more often"),
    ({"groups"}, {"max_path"}, "max_path limits single samples, and groups stay whole"),
    ({"groups"}, DRAWS, "mixture draws single samples"),
]
"""What cannot be together, with words of the line that says so; every other pair is a plan."""

MEETINGS = [
    *[pair for pair in combinations(CHOICES, 2) if not set(CHOICES[pair[0]]) & set(CHOICES[pair[1]])],
    # What sharing truncated beginnings does to each other setting, and to each budget where a pack is longer than a path.
    *[("overflow truncate", "share", name) for name in CHOICES if not {"overflow", "share"} & set(CHOICES[name])],
    *[("overflow truncate", "share", "max_path", name) for name in sorted(BUDGETS)],
]


def refusals_of(names: tuple[str, ...]) -> list[str]:
    """Words of the lines by which settings may be refused; empty if there is a plan."""
    return [
        words
        for ones, others, words in REFUSED
        if any({one} & ones and {other} & others for one in names for other in names)
        # A path of 30 tokens has no more than 950 squares.
        and not (others == {"budget squares below a pack"} and "max_path" in names)
    ]


def options_of(*names: str) -> dict[str, Any]:
    return {name: value for choice in names for name, value in CHOICES[choice].items()}


def make(options: dict[str, Any]) -> Plan:
    sources: dict[str, Any] = {"sources": SOURCES} if "draw" in options else {}
    return plan_packs(TABLE, **{**BASE, **options}, **sources)


def check_laws(plan: Plan, options: dict[str, Any]) -> None:
    """Every law, from the segments."""
    ledger, settings = plan.ledger, plan.settings
    lengths = [len(tokens) for tokens in SAMPLES]
    assert (ledger.samples_in, ledger.tokens_in) == (len(SAMPLES), sum(lengths))
    packs = [list(pack) for pack in plan]
    assert ledger.segments == sum(map(len, packs))
    assert ledger.tokens_packed == sum(segment.length for pack in packs for segment in pack)
    assert all(packs), "an empty pack"
    dropped = plan.dropped_ids.tolist()
    assert len(set(dropped)) == len(dropped) == ledger.samples_dropped
    assert ledger.tokens_dropped == sum(lengths[sample] for sample in dropped)
    assert (
        ledger.tokens_in
        == ledger.tokens_packed + ledger.tokens_shared - ledger.tokens_repeated
        + ledger.tokens_dropped + ledger.tokens_truncated + ledger.tokens_not_drawn
    )  # fmt: skip
    assert ledger.samples_in == ledger.samples_packed + ledger.samples_dropped + ledger.samples_not_drawn
    if plan.sharing is None:
        spans = check_flat(plan, packs, options)
    else:
        spans = check_trees(plan)
    packed = {sample for sample, _, _ in spans}
    assert not packed & set(dropped)
    assert len(packed) == ledger.samples_packed
    missing = set(range(len(SAMPLES))) - packed - set(dropped)
    assert len(missing) == ledger.samples_not_drawn
    assert not missing or "draw" in options
    if "groups" in options:
        for group in range(9):
            members = [2 * group, 2 * group + 1]
            homes = [index for index, pack in enumerate(packs) for segment in pack if segment.sample_id in members]
            assert len(set(homes)) <= 1, f"group {group} was taken apart"
            assert plan.sharing is not None or len(homes) in (0, 2)
            if homes and plan.sharing is None:
                ids = [segment.sample_id for segment in packs[homes[0]]]
                assert ids[ids.index(members[0]) :][:2] == members
    # Targets: the first token of what is packed is none.
    found = sum(sum(MASKS[sample][start + 1 : stop]) for sample, start, stop in spans)
    assert ledger.targets_in == sum(sum(mask[1:]) for mask in MASKS)
    assert ledger.targets_packed == found
    assert ledger.targets_dropped == sum(sum(MASKS[sample][1:]) for sample in dropped)
    if settings.no_target == "drop" and not {settings.overflow, settings.algorithm} & {"split", "concat_split"}:
        teaching = {sample for sample, start, stop in spans if any(MASKS[sample][start + 1 : stop])}
        if "groups" in options:  # a group stays whole if one of its samples has a target
            teaching = {sample for sample in packed if sample in teaching or (sample < 18 and sample ^ 1 in teaching)}
        assert teaching == packed
    assert 0 < plan.bound <= plan.num_packs


def check_flat(plan: Plan, packs: list[Any], options: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Sizes of packs, and the parts of samples; returns ``(sample, start, stop)`` of each segment."""
    unit, total = plan.settings.row_alignment.segment, plan.settings.row_alignment.total
    for pack in packs:
        tokens = sum(-(-segment.length // unit) * unit for segment in pack)
        assert -(-tokens // total) * total <= CAPACITY
        for name, most in (options.get("budgets") or {}).items():
            held = {
                "samples": len(pack),
                "squares": sum(segment.length**2 for segment in pack),
                "patches": sum(2 * len(SAMPLES[segment.sample_id]) for segment in pack),
                "loss_tokens": sum(sum(MASKS[segment.sample_id][1:]) for segment in pack),
            }[name]
            assert held <= most
    spans = [(segment.sample_id, segment.start, segment.start + segment.length) for pack in packs for segment in pack]
    ledger, policy = plan.ledger, plan.settings.overflow
    longest = plan.settings.longest_segment
    repeats = truncated = num_truncated = split = 0
    for sample, count in Counter(sample for sample, _, _ in spans).items():
        parts = sorted((start, stop) for owner, start, stop in spans if owner == sample)
        length = len(SAMPLES[sample])
        times = len([1 for start, _ in parts if start == parts[0][0]])
        repeats += times - 1
        once = parts[::times]
        assert Counter(parts) == Counter(dict.fromkeys(once, times)), "a part of a sample repeated without the others"
        assert all(stop == begin for (_, stop), (begin, _) in pairwise(once))
        begin, end = once[0][0], once[-1][1]
        split += count > times
        if (begin, end) != (0, length):
            assert length > longest
            assert end - begin == longest
            assert len(once) == 1 or plan.settings.algorithm == "concat_split"
            assert (begin, end) == ((0, longest) if policy == "truncate" else (length - longest, length))
            assert policy in ("truncate", "truncate_left")
            num_truncated += 1
            truncated += length - longest
        assert all(stop - start <= longest for start, stop in once)
    assert (ledger.draws_repeated, ledger.samples_split) == (repeats, split)
    assert (ledger.samples_truncated, ledger.tokens_truncated) == (num_truncated, truncated)
    return spans


def check_trees(plan: Plan) -> list[tuple[int, int, int]]:
    """Paths of trees spell their samples; returns ``(sample, 0, stop)`` of each."""
    spans = []
    limits = plan.settings.budgets or {}
    total = plan.settings.row_alignment.total
    for pack, paths in enumerate(paths_of(plan)):
        rows = range(int(plan.offsets[pack]), int(plan.offsets[pack + 1]))
        children = Counter(int(parent) for parent in plan.sharing.parents[rows.start : rows.stop] if parent >= 0)
        ends = {row for path in paths.values() for row in path[-1:] if plan.lengths[row] == 0}
        forks = sum(count - 1 for count in children.values()) - sum(
            1 for row in ends if children[int(plan.sharing.parents[row])] > 1
        )
        tokens = sum(int(plan.lengths[row]) for row in rows) + forks
        assert -(-tokens // total) * total <= CAPACITY
        stops = {row: int(plan.starts[row] + plan.lengths[row]) for row in rows}
        squares = sum(stops[row] ** 2 - int(plan.starts[row]) ** 2 for row in rows)
        assert squares <= limits.get("squares", squares)
        assert len(paths) <= limits.get("samples", len(paths))
        assert sum(sum(MASKS[sample][1:]) for sample in paths) <= limits.get("loss_tokens", 10**9)
        for sample, path in paths.items():
            spelled = [
                token
                for row in path
                for token in SAMPLES[int(plan.sample_ids[row])][int(plan.starts[row]) : stops[row]]
            ]
            assert spelled == SAMPLES[sample][: len(spelled)]
            assert len(spelled) == min(len(SAMPLES[sample]), plan.settings.longest_segment)
            spans.append((sample, 0, len(spelled)))
    lost = sum(len(SAMPLES[sample]) - stop for sample, _, stop in spans)
    assert plan.ledger.tokens_truncated == lost
    assert plan.ledger.tokens_packed + plan.ledger.tokens_shared == sum(stop for *_, stop in spans)
    return spans


@pytest.mark.parametrize("names", MEETINGS, ids=lambda names: " and ".join(names).replace(" ", "_"))
def test_settings_that_meet_are_refused_or_keep_every_law(names, tmp_path):
    """Settings are tested one by one; what two do together is first seen by a user."""
    if "algorithm optimal" in names:
        pytest.importorskip("highspy")
    options = options_of(*names)
    if refusals := refusals_of(names):
        with pytest.raises(BrimfulError) as caught:
            make(options)
        assert any(words in str(caught.value) for words in refusals)
        assert "\n" not in str(caught.value)
        return
    plan = make(options)
    check_laws(plan, options)
    plan.validate(TABLE, groups=options.get("groups"))
    again = make(options)
    assert again.fingerprint == plan.fingerprint
    settings = PlanSettings.of_record(json.loads(json.dumps(plan.settings.as_dict())))
    # A limit of time names no plan, and is in no file.
    assert dataclasses.replace(settings, time_limit=plan.settings.time_limit) == plan.settings
    plan.save(tmp_path / "plan.arrow")
    opened = Plan.open(tmp_path / "plan.arrow")
    assert (list(opened), opened.ledger, opened.record) == (list(plan), plan.ledger, plan.record)


@pytest.mark.long
@pytest.mark.parametrize(
    "first", [name for name in CHOICES if name != "num_packs"], ids=lambda name: name.replace(" ", "_")
)
def test_three_settings_too(first, tmp_path):
    """Every three; how many packs there may be depends on all of them."""
    pytest.importorskip("highspy")
    later = list(CHOICES)[list(CHOICES).index(first) + 1 :]
    for one, other in combinations(later, 2):
        names = (first, one, other)
        keys = [key for name in names for key in CHOICES[name]]
        if "num_packs" not in names and len(set(keys)) == len(keys):
            test_settings_that_meet_are_refused_or_keep_every_law(names, tmp_path)


def test_every_setting_has_a_choice():
    """A setting that is in no pair is tested with no other."""
    fields = {field.name for field in dataclasses.fields(PlanSettings) if field.init}
    assert fields - {name for choice in CHOICES.values() for name in choice} == {"capacity"}
