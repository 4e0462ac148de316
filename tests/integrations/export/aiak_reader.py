"""A script that loads the post-packing layout as the trainer of LLaVA-OneVision-1.5 does: by Energon and its sample class."""

import json
import sys
import types
from dataclasses import dataclass

from megatron.energon import DefaultTaskEncoder, Sample, WorkerConfig, get_loader, get_val_dataset, stateless


@dataclass(kw_only=True)
class PackedCaptioningSample(Sample):
    images: list
    prompts: list
    captions: list


for name in ("aiak_training_llm", "aiak_training_llm.data", "aiak_training_llm.data.multimodal"):
    sys.modules[name] = types.ModuleType(name)
vars(sys.modules["aiak_training_llm.data.multimodal"])["PackedCaptioningSample"] = PackedCaptioningSample


class Encoder(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return sample

    @stateless
    def batch(self, samples):
        return samples[0]


def shape(image):
    return None if image is None else [shape(one) for one in image] if isinstance(image, list) else list(image.shape)


dataset = get_val_dataset(
    sys.argv[1],
    split_part="train",
    worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    batch_size=1,
    task_encoder=Encoder(),
)
packs = [[list(map(shape, pack.images)), pack.prompts, pack.captions] for pack in get_loader(dataset)]
print("\n" + json.dumps(packs))
