"""Order of packs, and choice of the samples that share a pack, at no cost in fill."""
