"""The one line that users put into their own tests."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator
from brimful.testing import assert_packing_is_right
from brimful.verify.drawn_samples import random_samples
from brimful.verify.models import tiny_model
from tests.verify import faults

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_helper_passes_and_fails_with_the_table():
    """What users put into their own tests."""
    model = tiny_model("qwen2")
    assert assert_packing_is_right(model, PackCollator(), random_samples(128), attention="sdpa").ok
    with pytest.raises(AssertionError, match="cause: mask present"):
        assert_packing_is_right(model, faults.mask_present, random_samples(128), attention="sdpa")
