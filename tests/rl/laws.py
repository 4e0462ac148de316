"""What every plan of a step holds, whatever it was made from."""

from typing import Any

import numpy as np

from brimful import LengthTable
from brimful.errors import InvalidLengthsError, OversizedSampleError
from brimful.rl import plan_step


def check_step(step, lengths, *, capacity, ranks, multiple_of=1, groups=None, groups_share="rank", budgets=None):
    """Every law of a step; raises for the first that is broken."""
    lengths = np.asarray(lengths)
    columns = {"tokens": lengths, "samples": np.ones_like(lengths), "squares": lengths**2}
    places = {}
    for rank in range(ranks):
        rows = step.micro_batches(rank)
        assert len(rows) == step.num_micro_batches
        assert len(rows) % multiple_of == 0
        assert np.concatenate(rows).tolist() == step.positions(rank).tolist()
        for number, positions in enumerate(rows):
            assert len(positions) > 0, "an empty micro-batch"
            for name, limit in {"tokens": capacity, **(budgets or {})}.items():
                assert columns[name][positions].sum() <= limit, f"over the budget of {name}"
            assert step.tokens[rank, number] == lengths[positions].sum()
            places.update(dict.fromkeys(positions.tolist(), (rank, number)))
    assert sorted(places) == list(range(len(lengths))), "a sample lost"
    assert len(step.order) == len(lengths), "a sample twice"
    assert lengths[step.order][step.restore].tolist() == lengths.tolist()
    if groups is not None:
        for group in set(np.asarray(groups).tolist()) - {-1}:
            members = [places[sample] for sample in np.flatnonzero(np.asarray(groups) == group).tolist()]
            shared = {place[0] if groups_share == "rank" else place for place in members}
            assert len(shared) == 1, f"group {group} was taken apart"


def random_step(generator):
    """Lengths and settings of a step: from one sample to hundreds, from loose to impossible."""
    ranks = int(generator.integers(1, 17))
    samples = (
        int(generator.integers(1, 30)) if generator.random() < 0.3 else int(generator.integers(ranks, 40 * ranks + 1))
    )
    capacity = int(generator.integers(8, 4096))
    median = capacity * generator.uniform(0.01, 0.7)
    lengths = np.clip(generator.lognormal(np.log(max(median, 1.0)), generator.uniform(0, 1.5), samples), 1, capacity)
    settings: dict[str, Any] = {"capacity": capacity, "multiple_of": int(generator.choice([1, 1, 1, 2, 4]))}
    if generator.random() < 0.3:
        settings["groups"] = generator.integers(-1, max(1, samples // int(generator.integers(1, 9))), samples)
        settings["groups_share"] = str(generator.choice(["rank", "micro_batch"]))
    if generator.random() < 0.2:
        settings["budgets"] = {"samples": int(generator.integers(1, 20))}
    settings["barrier"] = str(generator.choice(["micro_batch", "step"]))
    return lengths.astype(np.int64), ranks, settings


def plan_or_refuse(lengths, ranks, settings):
    """The plan, checked; or the lines in which it is refused."""
    costs = lengths * 1000.0 + lengths.astype(float) ** 2
    try:
        step = plan_step(LengthTable({"tokens": lengths.astype(np.int32)}), dp_world_size=ranks, cost=costs, **settings)
    except (InvalidLengthsError, OversizedSampleError) as error:
        return str(error).splitlines()
    laws = {name: value for name, value in settings.items() if name != "barrier"}
    check_step(step, lengths, ranks=ranks, **laws)
    return step
