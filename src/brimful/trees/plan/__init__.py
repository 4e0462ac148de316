"""Trees: packs in which samples share the tokens that they begin with."""
