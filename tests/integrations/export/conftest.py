"""Libraries that are not installed: from folders that variables name, or stand-ins for their readers."""

import os
import sys

import pytest

from tests.integrations.export.readers import STAND_INS, EnergonLoader, stand_in

if folders := os.environ.get("BRIMFUL_WEBDATASET"):
    sys.path += folders.split(os.pathsep)


@pytest.fixture
def readers(monkeypatch):
    """Every reader of an export can be imported."""
    stand_in(monkeypatch, *STAND_INS)
    monkeypatch.delitem(sys.modules, "brimful.integrations.export.energon_task_encoder", raising=False)
    yield
    assert EnergonLoader.running == 0, "a loader that is not ended keeps its processes"
