"""Names of the variables of the environment by which ``preload`` knows what to load."""

TOKENIZER = "BRIMFUL_PRELOAD_TOKENIZER"
"""Directory of a tokenizer."""

TRANSFORMERS = "BRIMFUL_PRELOAD_TRANSFORMERS"
"""Set if texts are rendered by Transformers."""
