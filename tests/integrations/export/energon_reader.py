"""A script that reads an export with the Energon of its process and prints what it found as one line of JSON."""

import dataclasses
import importlib.util
import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from megatron.energon import WorkerConfig, get_loader, get_savable_loader, get_train_dataset, get_val_dataset

NUM_STEPS = 9


def task_encoder(directory):
    """The file next to the export, without brimful."""
    specification: Any = importlib.util.spec_from_file_location("task_encoder", Path(directory) / "task_encoder.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules["task_encoder"] = module  # dataclasses look for it
    specification.loader.exec_module(module)
    return module.PackTaskEncoder()


def workers(num_workers=0):
    return WorkerConfig(rank=0, world_size=1, num_workers=num_workers)


def row(batch):
    return {
        "input_ids": batch.tokens[0].tolist(),
        "loss_mask": batch.is_target[0].tolist(),
        "cu_seqlens": batch.cu_lengths[0].tolist(),
        "sample_ids": batch.sample_ids.tolist(),
        "starts": batch.starts.tolist(),
        "media": [item["data"].hex() for item in batch.media],
    }


@contextmanager
def ended(loader):
    """A loader that is shut down at the end, where its version has workers of its own."""
    try:
        yield loader
    finally:
        if hasattr(loader, "shutdown"):
            loader.shutdown()


def batches_of(directory, encoder, batch_size):
    dataset = get_val_dataset(
        directory, split_part="train", worker_config=workers(), batch_size=batch_size, task_encoder=encoder
    )
    with ended(get_loader(dataset)) as loader:
        return list(loader)


def in_order(directory, batch_size="1"):
    batches = batches_of(directory, task_encoder(directory), int(batch_size))
    extra = [
        {
            "labels": batch.labels[0].tolist(),
            "loss": batch.loss_mask[0].tolist(),
            "positions": batch.position_ids[0].tolist(),
            "longest": batch.max_lengths.tolist(),
            "places": [
                [item["kind"], item["name"], item["segment"], item["start"], item["grid"]] for item in batch.media
            ],
        }
        for batch in batches
    ]
    return {"rows": list(map(row, batches)), "extra": extra}


def resumed(directory, num_workers="0"):
    """Some steps, a state, some more; and the same steps from that state by a new loader."""

    def loader():
        dataset = get_train_dataset(
            directory,
            worker_config=workers(int(num_workers)),
            batch_size=1,
            shuffle_buffer_size=None,
            max_samples_per_sequence=3,
            task_encoder=task_encoder(directory),
        )
        return get_savable_loader(dataset)

    with ended(loader()) as first:
        iterator = iter(first)
        before = [row(next(iterator)) for _ in range(NUM_STEPS)]
        state = first.save_state_rank()
        after = [row(next(iterator)) for _ in range(NUM_STEPS)]
    with ended(loader()) as second:
        second.restore_state_rank(state)
        iterator = iter(second)
        return {"before": before, "after": after, "again": [row(next(iterator)) for _ in range(NUM_STEPS)]}


def contract(directory):
    """What batches are, and what is left of them after an ``encode_batch`` of the user."""
    encoder = task_encoder(directory)
    module: Any = sys.modules["task_encoder"]

    @dataclasses.dataclass(kw_only=True)
    class Inputs(module.Batch):
        tokens: object

    class Trainer(module.PackTaskEncoder):
        def encode_batch(self, batch):
            return Inputs.derive_from(batch, tokens=batch.tokens)

    plain, derived = (batches_of(directory, each, 2)[0] for each in (encoder, Trainer()))
    return {
        "is_batch": [isinstance(batch, module.Batch) for batch in (plain, derived)],
        "restore_keys": [len(str(batch.__restore_key__)) > 10 for batch in (plain, derived)],
        "keys": plain.__key__,
        "sources": [source.shard_name for source in plain.__sources__ or ()],
    }


def mixed(path, directory):
    dataset = get_train_dataset(
        path,
        worker_config=workers(),
        batch_size=1,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=task_encoder(directory),
    )
    with ended(get_loader(dataset)) as loader:
        iterator = iter(loader)
        return [next(iterator).tokens.shape[1] for _ in range(300)]


def prepared(directory, copy):
    """Index files that Energon makes of the same tars."""
    from megatron.energon.epathlib import EPath
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    tars = sorted(path.name for path in Path(directory).glob("*.tar"))
    Path(copy).mkdir()
    for name in tars:
        shutil.copy(Path(directory) / name, copy)
    WebdatasetPreparator.prepare_dataset(
        EPath(copy), tars, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    return tars


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    print("\n" + json.dumps(globals()[command](*arguments)))
