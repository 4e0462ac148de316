"""A script in which Energon packs with our planner, by its own task encoder and buffer."""

import json
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from megatron.energon import (
    Cooker,
    Sample,
    TaskEncoder,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_train_dataset,
    stateless,
)

from brimful.integrations.export import export_packs, select_samples_to_pack
from brimful.store.shards import assemble_pack
from brimful.testing.toys import ToyPacks


@dataclass(kw_only=True)
class Encoded(Sample):
    tokens: torch.Tensor
    patches: int


@dataclass(kw_only=True)
class Packed(Sample):
    parts: list


@stateless
def cook(sample):
    tokens = torch.from_numpy(sample["input_ids.npy"])
    return Encoded(**basic_sample_keys(sample), tokens=tokens, patches=len(tokens) % 9)


class Packer(TaskEncoder):
    cookers = [Cooker(cook)]

    def select_samples_to_pack(self, samples):
        return select_samples_to_pack(samples, capacity=100, budgets={"patches": (40, lambda sample: sample.patches)})

    @stateless
    def pack_selected_samples(self, samples):
        return Packed.derive_from(samples[0], parts=[[len(sample.tokens), sample.patches] for sample in samples])


rng = np.random.default_rng(0)
packs = ToyPacks()
for number in range(64):
    length = int(rng.integers(1, 100))
    packs.append(assemble_pack([np.ones(length, np.int32)], [np.ones(length, bool)], [number]))
with tempfile.TemporaryDirectory() as home:
    export_packs(packs, to="energon", directory=home)
    dataset = get_train_dataset(
        home,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        packing_buffer_size=32,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Packer(),
    )
    result, count = [], 0
    for pack in get_loader(dataset):
        result.append(pack.parts)
        count += len(pack.parts)
        if count >= 64:
            break
print("\n" + json.dumps(result))
