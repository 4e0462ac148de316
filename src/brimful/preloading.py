"""Names of the variables of the environment that tell the server of worker processes what to load (``encode.preload``)."""

TOKENIZER = "BRIMFUL_PRELOAD_TOKENIZER"
"""Directory of a tokenizer."""

TRANSFORMERS = "BRIMFUL_PRELOAD_TRANSFORMERS"
"""Set if texts are rendered by Transformers."""
