"""Shares asked for and realised, in words."""

from brimful.mixtures import Mixture
from brimful.mixtures.proportions import describe_mixture, sources_of_record
from brimful.plan import plan_packs


def test_one_line_for_all_and_one_for_each():
    """Two sources of four samples, three to one."""
    mixture = Mixture(weights={"a": 3, "b": 1}, num_samples=8)
    plan = plan_packs([2] * 8, capacity=4, draw=mixture, sources={"a": 4, "b": 4})
    mixed = plan.outcome.drawn
    assert [source.describe() for source in sources_of_record(mixed)] == [
        "a: 75.00 % asked for, 75.00 % packed; 6 samples, 12 tokens; 2 repeats",
        "b: 25.00 % asked for, 25.00 % packed; 2 samples, 4 tokens; 2 left for later epochs",
    ]
    assert describe_mixture(mixed, mixture.as_dict()) == (
        "2 sources, mix then pack, shares of samples within 0.00 % of the request; 2 repeats, 2 samples left for later epochs"
    )
    # The record of another program, or of none, has no sources.
    assert describe_mixture({}, {}).startswith(
        "0 sources, mix then pack, shares of samples within 0.00 % of the request"
    )
