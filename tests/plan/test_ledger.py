"""The account of a plan: every loss is counted apart."""

import pytest

from brimful import plan_packs
from brimful.plan.ledger import Ledger


@pytest.mark.parametrize(
    ("policy", "account"),
    [
        ("drop", {"samples_packed": 1, "tokens_packed": 3, "samples_dropped": 1, "tokens_dropped": 10}),
        ("truncate", {"samples_packed": 2, "tokens_packed": 7, "samples_truncated": 1, "tokens_truncated": 6}),
        ("truncate_left", {"samples_packed": 2, "tokens_packed": 7, "samples_truncated": 1, "tokens_truncated": 6}),
        ("split", {"samples_packed": 2, "tokens_packed": 13, "samples_split": 1}),
    ],
)
def test_every_policy_says_what_it_cost(policy, account):
    """Silent loss is the complaint this library answers; the ledger must show each kind apart."""
    ledger = plan_packs([3, 10], capacity=4, overflow=policy).ledger.as_dict()
    zero = {"samples_dropped": 0, "tokens_dropped": 0, "samples_truncated": 0, "tokens_truncated": 0}
    zero |= {"samples_split": 0, "samples_rejected": 0, "samples_without_target": 0}
    expected = {"samples_in": 2, "tokens_in": 13, "segments": ledger["segments"], **zero, **account}
    assert ledger == expected


def test_shares_of_what_is_lost():
    """Dropped and cut together, of all that came in: a reader of one of the two believes that the other is kept."""
    ledger = Ledger(
        samples_in=5,
        samples_packed=3,
        samples_dropped=2,
        tokens_in=13,
        tokens_packed=4,
        tokens_dropped=6,
        tokens_truncated=3,
        targets_in=11,
        targets_packed=3,
        targets_dropped=5,
        targets_cut=3,
    )
    assert (ledger.lost_ratio, ledger.targets_lost_ratio) == (9 / 13, 8 / 11)
    assert (Ledger().lost_ratio, Ledger().targets_lost_ratio) == (0, 0)
    one = Ledger(tokens_in=1, tokens_dropped=1, targets_in=1, targets_cut=1)
    assert (one.lost_ratio, one.targets_lost_ratio) == (1, 1)
