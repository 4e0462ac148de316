"""Order and companions: which samples share a pack, at no cost in fill."""
