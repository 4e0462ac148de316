"""Settings of micro-batches check themselves."""

# mypy: disable-error-code="arg-type"

import pytest

from brimful.dynamic.token_budget import SampleCount, TokenBudget, Warmup
from brimful.errors import (
    SettingsError,
)


def test_budget_warm_up():
    """From 200 to 8192 over 100 steps; the last number is what the budget is from then on."""
    warmup = Warmup(steps=100)
    assert [warmup.budget(step, 8192) for step in (0, 1, 50, 99, 100, 101)] == [200, 279, 4196, 8112, 8192, 8192]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenBudget(0), "token budget: tokens must be a whole number of at least 1 and is 0"),
        (lambda: TokenBudget(8, capacity=7), "capacity is 7 and the token budget 8"),
        (lambda: TokenBudget(8, count="effective"), "count 'effective' is unknown: use one of total, loss_tokens"),
        (lambda: TokenBudget(8, warmup=Warmup(steps=3, start=9)), "warmup starts at 9 tokens, above the budget of 8"),
        (lambda: TokenBudget(8, count="loss_tokens", fit="exact"), "use count='total'"),
        (lambda: Warmup(steps=0), "steps must be a whole number of at least 1"),
        (lambda: SampleCount(0), "samples must be a whole number of at least 1"),
    ],
)
def test_settings_check_themselves(make, message):
    """Two settings that contradict each other are named, with both values."""
    with pytest.raises(SettingsError, match=message):
        make()
