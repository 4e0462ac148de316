"""torchtitan: the boundaries that its attention finds in batches of the loader; its attention that isolates needs a GPU to train."""

from tests.compat.trainer import Trainer

TRAINER = Trainer(
    name="torchtitan",
    package="torchtitan",
    page="torchtitan.md",
    ours=(
        "tests/integrations/trainers/test_torchtitan.py",
        "tests/collate/test_real_libraries.py::test_torchtitan_finds_our_boundaries",
    ),
    needs=("triton",),
    why_no_own="its source distribution has none that a CPU runs on packs",
    remarks=(("0.2.2", "it finds documents by an end token and reads no positions"),),
)


def main() -> None:
    import torch
    from torchtitan.components.dataloader import BaseDataLoader  # type: ignore[import-not-found]
    from torchtitan.models.common.attention import create_varlen_metadata_for_document  # type: ignore[import-not-found]

    from brimful import PackedDataset
    from brimful.integrations.trainers.torchtitan import TorchtitanLoader

    class PackDataLoader(TorchtitanLoader, BaseDataLoader):
        pass

    loader = PackDataLoader(
        PackedDataset("packs"), seq_len=2048, local_batch_size=2, dp_rank=0, dp_world_size=1, seed=None
    )
    inputs, labels = next(iter(loader))
    starts = torch.nonzero(inputs["positions"].flatten() == 0).flatten().tolist()
    metadata = create_varlen_metadata_for_document(inputs["positions"])
    assert metadata.cu_seq_q.tolist() == [*starts, inputs["positions"].numel()]
    assert len(starts) > 1
    assert labels.shape == inputs["input"].shape
    print(f"loader only: {len(starts)} documents")


if __name__ == "__main__":
    main()
