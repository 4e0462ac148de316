"""Vector bin packing: packs under several budgets at once."""
