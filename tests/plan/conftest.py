"""Fixtures of tests of plans."""

import pytest

from tests.plan.forms import use


@pytest.fixture(params=["compiled", "plain"])
def form(request, monkeypatch):
    """Each test runs on both forms, however few items it has."""
    return use(request.param, monkeypatch)
