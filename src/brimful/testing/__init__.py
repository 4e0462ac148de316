"""For your tests: toys, strategies, contracts, and one line that checks packing."""

from brimful.testing.assertions import assert_packing_is_right

__all__ = ["assert_packing_is_right"]
