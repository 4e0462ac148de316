"""What holds for every plan, whatever its algorithm and options."""

import numpy as np
from hypothesis import assume, given, settings

from brimful import Plan
from brimful.plan import ALGORITHMS, Tail, schedule_packs
from brimful.testing.strategies import lengths_and_plans, plans


@settings(max_examples=200)
@given(case=lengths_and_plans())
def test_every_plan_accounts_for_every_token(case):
    """Without it an option, or two of them together, could lose, double or overfill what no test of its own looks at."""
    lengths, plan = case
    plan.validate(np.array(lengths))
    ledger = plan.ledger
    assert ledger.tokens_in == sum(lengths) == ledger.tokens_packed + ledger.tokens_dropped + ledger.tokens_truncated
    assert ledger.samples_in == len(lengths) == ledger.samples_packed + ledger.samples_dropped
    assert ledger.segments == plan.num_segments == sum(map(len, plan))
    assert plan.num_packs >= plan.bound


@given(plan=plans())
def test_a_saved_plan_is_the_same_plan(plan, tmp_path_factory):
    """Without it a plan that is made in one process is another one where packs are written."""
    path = tmp_path_factory.mktemp("plan") / "plan.arrow"
    plan.save(path)
    opened = Plan.open(path)
    opened.check_fingerprint()
    assert (opened.fingerprint, opened.ledger, opened.bound) == (plan.fingerprint, plan.ledger, plan.bound)
    assert (list(opened), opened.dropped_ids.tolist()) == (list(plan), plan.dropped_ids.tolist())


@given(plan=plans())
def test_every_pack_is_served_once_in_an_epoch(plan):
    """Without it a pack could be trained on twice, or never, on some number of ranks."""
    options = {"dp_world_size": 3, "micro_batches": 2, "packs_per_micro_batch": 1, "epoch": 0, "seed": 0}
    assume(plan.num_packs)
    served = schedule_packs(plan.num_packs, tail=Tail.PAD, **options)
    assert sorted(served[served >= 0].tolist()) == list(range(plan.num_packs))


def test_the_strategy_makes_plans_of_every_algorithm_but_one():
    """A strategy that never draws an algorithm would leave it untested in silence."""
    drawn = set()

    @settings(max_examples=150)
    @given(plan=plans(max_samples=4))
    def draw(plan):
        drawn.add(repr(plan).split(", ")[-2])  # Plan(… packs of …, … samples, fill …, auto, 686bbe4)

    draw()
    assert drawn == set(ALGORITHMS) - {"optimal"}
