"""NeMo AutoModel: its collater by the packing contract of a model, and its loss, in a loop of ours: its recipe needs a GPU."""

from tests.compat.steps import report
from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="NeMo AutoModel",
    package="nemo-automodel",
    page="nemo_automodel.md",
    ours=(
        "tests/integrations/trainers/test_real_readers.py",
        "tests/integrations/trainers/test_nemo_automodel.py",
        "tests/collate/test_real_libraries.py",
        "-k",
        "nemo_automodel",
    ),
    remarks=(("0.6.0", "it has no packing contracts"),),
)


def main() -> None:
    import torch
    from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
    from nemo_automodel.components.models.common.packing import get_packing_capabilities
    from transformers import AutoModelForCausalLM

    from brimful import PackCollator, PackedDataset
    from brimful.integrations.trainers.nemo_automodel import ContractCollator

    model = AutoModelForCausalLM.from_pretrained("model", attn_implementation="sdpa", dtype=torch.float32)
    contract = get_packing_capabilities("sdpa", model=model)
    packs = PackedDataset("packs")
    batch = ContractCollator(contract, to=2048)([packs[0]])
    batch.pop("_packed_seq_ids", None)  # the recipe takes it out
    labels = batch.pop("labels")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    num_targets = int((labels != -100).sum())
    loss = MaskedCrossEntropy()(model(**batch).logits, labels, num_label_tokens=num_targets)
    loss.backward()
    optimizer.step()
    report(float(loss), PackCollator()([packs[0]]))


if __name__ == "__main__":
    main()
