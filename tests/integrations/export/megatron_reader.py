"""A script that reads an indexed data set with Megatron-Core and prints it as one line of JSON."""

import json
import sys

from megatron.core.datasets.indexed_dataset import IndexedDataset

directory = sys.argv[1]
tokens, masks = IndexedDataset(f"{directory}/packs"), IndexedDataset(f"{directory}/packs_loss_mask")
found = {
    "dtypes": [str(tokens.index.dtype.__name__), str(masks.index.dtype.__name__)],
    "documents": tokens.document_indices.tolist(),
    "lengths": tokens.sequence_lengths.tolist(),
    "tokens": [tokens[number].tolist() for number in range(len(tokens))],
    "masks": [masks[number].tolist() for number in range(len(masks))],
    "last_two": tokens.get(len(tokens) - 1, offset=1, length=2).tolist(),
}
print("\n" + json.dumps(found))
