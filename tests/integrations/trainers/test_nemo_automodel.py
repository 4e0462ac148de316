"""Packs by the packing contract of NeMo AutoModel 0.7: what its own packing makes of the same samples."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.errors import CollateError, MissingExtraError  # noqa: E402
from brimful.integrations.trainers.nemo_automodel import ContractCollator  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402

HAS_AUTOMODEL = importlib.util.find_spec("nemo_automodel") is not None
needs_automodel = pytest.mark.skipif(not HAS_AUTOMODEL, reason="NeMo AutoModel is not installed")


@needs_automodel
@pytest.mark.parametrize("metadata", [False, True])
@pytest.mark.parametrize("mask_type", ["block_causal", "document_ids", "flash_varlen"])
def test_nemo_automodel_contract_gives_what_its_own_packing_makes(mask_type, metadata):
    """Its packer on samples with shifted labels, and its collater: all keys, values and types."""
    from nemo_automodel.components.datasets.llm.neat_packing import neat_pack_dataset
    from nemo_automodel.components.datasets.utils import neat_packed_collater

    contract = SimpleNamespace(packed_mask_type=mask_type, requires_packed_sequence_metadata=metadata)
    lengths = [4, 3, 2]  # its packer takes the longest first
    pack = toy_pack(lengths)
    plain = PackCollator(dialect="plain")([pack])
    samples = [
        {
            "input_ids": plain["input_ids"][row, :length].tolist(),
            "labels": [*plain["labels"][row, 1:length].tolist(), -100],
        }
        for row, length in enumerate(lengths)
    ]
    rows = neat_pack_dataset(samples, split=None, pack_size=16, padding_idx=0)
    theirs = neat_packed_collater([rows[0]], packing=contract)
    ours = ContractCollator(contract, to=16)([pack])
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        if not torch.is_tensor(value):
            assert ours[key] == value
        elif key != "position_ids":  # positions of the padding are 0 there, and count on here
            assert ours[key].dtype == value.dtype
            assert torch.equal(ours[key], value), key
    assert torch.equal(ours["position_ids"][:, :9], theirs["position_ids"][:, :9])


@pytest.fixture
def rows_alone(monkeypatch):
    """In the place of its collater: what it is given, also without AutoModel."""
    names = [
        f"nemo_automodel{rest}" for rest in ("", ".components", ".components.datasets", ".components.datasets.utils")
    ]
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules[names[-1]]).update(neat_packed_collater=lambda rows, packing: {"rows": rows, "packing": packing})


def test_its_collater_gets_a_row_for_each_pack(rows_alone):
    """Numbers of the samples as the mask, from 1, and 0 at the padding; labels are shifted."""
    packs = [toy_pack([3, 2]), toy_pack([4], first_sample=2)]
    collate = ContractCollator("document_ids", to=6)
    batch = collate(packs)
    assert batch["packing"] is collate
    assert [row["attention_mask"].tolist() for row in batch["rows"]] == [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]]
    expected = PackCollator(dialect="nemo_automodel", pad_to=6)(packs)
    for number, row in enumerate(batch["rows"]):
        assert {name: row[name].tolist() for name in ("input_ids", "labels", "position_ids")} == {
            name: expected[name][number].tolist() for name in ("input_ids", "labels", "position_ids")
        }


def test_nemo_automodel_contract_refuses_weights(rows_alone):
    """Nothing there would read them."""
    collator = ContractCollator(to=8)
    collator._collator = PackCollator(dialect="nemo_automodel", pad_to=8, loss_weights="sample")
    with pytest.raises(CollateError, match="loss_weights of packs are in no packing contract"):
        collator([toy_pack([3, 2])])


@pytest.mark.skipif(HAS_AUTOMODEL, reason="it is installed")
def test_without_nemo_automodel_it_is_named():
    with pytest.raises(
        MissingExtraError, match=r"ContractCollator needs NeMo AutoModel 0\.7 .*pip install nemo-automodel"
    ):
        ContractCollator()([toy_pack([3])])
