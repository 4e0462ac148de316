"""The loader of torchtitan: batches of one shape, and a state that any rank can resume.

    python examples/07_torchtitan_loader.py

Needs no torchtitan: the loop below asks for batches as its trainer does. ``docs/trainers/torchtitan.md`` shows the class
that goes into a configuration.
"""

from __future__ import annotations

import tempfile

from brimful import PackedDataset, measure_lengths, open_source, plan_packs
from brimful.cli.demo.docstring_chats import make_chats
from brimful.cli.demo.toy_model import train_tokenizer
from brimful.integrations.trainers.torchtitan import TorchtitanLoader


def main() -> None:
    from transformers import AutoTokenizer

    from brimful import ChatEncoder

    with tempfile.TemporaryDirectory() as folder:
        chats = make_chats(limit=400)
        train_tokenizer(
            (turn["content"] for chat in chats for turn in chat["messages"]),
            folder,
            vocab_size=2000,
        )
        source, encoder = open_source(chats), ChatEncoder(AutoTokenizer.from_pretrained(folder))
        plan = plan_packs(
            measure_lengths(source, encoder, cache_dir=folder), capacity=512, overflow="drop"
        )
        packs = PackedDataset.from_plan(source, encoder, plan)

        loader = TorchtitanLoader(
            packs, seq_len=512, local_batch_size=2, dp_rank=1, dp_world_size=4
        )
        batches = iter(loader)
        for step in range(3):
            inputs, _ = next(batches)
            documents = int((inputs["positions"] == 0).sum())
            print(f"step {step}: {tuple(inputs['input'].shape)} tokens, {documents} documents")
        state = loader.state_dict()
        expected = next(batches)[1]

        again = TorchtitanLoader(packs, seq_len=512, local_batch_size=2, dp_rank=1, dp_world_size=4)
        again.load_state_dict(state)
        resumed = next(iter(again))[1]
        print("resumed with the batch that comes next" if expected.equal(resumed) else "differs")
        print(f"{len(loader)} batches an epoch on each of 4 ranks")


if __name__ == "__main__":
    main()
