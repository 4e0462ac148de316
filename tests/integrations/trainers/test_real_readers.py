"""What the pages of docs/trainers say was run against a trainer's own code, where that code can be imported."""

import importlib
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding, lay_out  # noqa: E402
from brimful.testing.toys import toy_pack, toy_packs  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries

LENGTHS = [4, 2, 1, 3]
PADDINGS = {"none": Padding(), "tail": Padding(to=16), "gaps": Padding(to=24, segment_multiple_of=4)}


def real(module, *names):
    """Names of another project's module, or a skip with the reason: some need more than they say."""
    try:
        found = importlib.import_module(module)
        return [getattr(found, name) for name in names]
    except Exception as error:
        pytest.skip(f"{module} cannot be imported here: {str(error).splitlines()[0] if str(error) else error!r}")


@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
def test_megatron_core_reads_a_micro_batch(padding, monkeypatch, tmp_path):
    """One rank, tensors in host memory: tokens, labels, loss mask and padding mask come out as they are in the batch."""
    read, _ = real(
        "megatron.core.datasets.data_schedule",
        "get_batch_on_this_rank_for_sequence_packing",
        "_build_thd_padding_mask",  # since which it returns one
    )
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        world = torch.distributed.group.WORLD
        monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
        given = PackCollator(dialect="megatron", padding=padding)([toy_pack(LENGTHS)])
        flat = {
            key: value.view(-1) if torch.is_tensor(value) and value.dim() == 2 else value
            for key, value in given.items()
        }
        groups = types.SimpleNamespace(tp=world, pp=world, cp=world)
        tokens, labels, loss_mask, _, positions, params, mask = read(iter([dict(flat)]), pg_collection=groups)
    finally:
        torch.distributed.destroy_process_group()
    batch = lay_out([toy_pack(LENGTHS)], padding=padding)
    found = {
        "tokens": tokens,
        "labels": labels,
        "loss_mask": loss_mask,
        "position_ids": positions,
        "padding_mask": mask,
    }
    flat["position_ids"] = flat["position_ids"].masked_fill(flat["padding_mask"], 0)  # as Megatron does in padding
    for name, value in found.items():
        assert torch.equal(value.view(-1), flat[name]), name
    assert params.cu_seqlens_q.tolist() == batch.cu_seqlens.tolist()
    assert params.max_seqlen_q == batch.max_seqlen


@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
def test_megatron_bridge_reads_the_layout_of_2026(padding):
    """Its reader finds boundaries, the longest segment and the tokens of the row."""
    (read,) = real("megatron.bridge.training.utils.packed_seq_utils", "get_packed_seq_params")
    batch = lay_out([toy_pack(LENGTHS)], padding=padding)
    found = read(PackCollator(dialect="megatron_bridge", padding=padding)([toy_pack(LENGTHS)]))
    if padding is PADDINGS["gaps"]:
        assert found.cu_seqlens_q_padded.tolist() == batch.cu_seqlens.tolist()
    else:
        assert found.cu_seqlens_q.tolist() == batch.cu_seqlens.tolist()
    assert (int(found.max_seqlen_q), found.total_tokens) == (batch.max_seqlen, len(batch.input_ids))


def test_nemo_automodel_builds_its_loader_from_the_file_of_the_page(tmp_path, monkeypatch):
    """The names of the recipe resolve, and its own loader gives what its THD code reads."""
    dataset, collator, config = real(
        "nemo_automodel.components.datasets.loader", "make_dataset_config", "make_collate_fn", "DataloaderConfig"
    )
    (to_thd,) = real("nemo_automodel.components.distributed.thd_utils", "process_input_for_thd")
    (tmp_path / "my_packs.py").write_text(
        "from brimful import PackCollator\n"
        "from brimful.collate import Padding\n"
        "from brimful.testing.toys import toy_packs\n"
        "packs = toy_packs\n"
        'collate = PackCollator(dialect="nemo_automodel", padding=Padding(to=16))\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loader = config(
        dataset_config=dataset("my_packs.packs", {"count": 4}), collate_fn=collator("my_packs.collate"), batch_size=1
    ).build(dp_rank=0, dp_world_size=1)
    sys.modules.pop("my_packs")
    found = [to_thd(batch) for batch in loader]
    packs = [lay_out([pack], padding=Padding(to=16)) for pack in toy_packs(4)]
    assert sorted(one["cu_seqlens"].tolist() for one in found) == sorted(pack.cu_seqlens.tolist() for pack in packs)


@pytest.mark.parametrize("pad_to", [None, 16])
def test_axolotl_finds_our_boundaries(pad_to):
    """What its flash attention asks of the numbered samples: boundaries without the padding."""
    spec = importlib.util.find_spec("axolotl")
    if spec is None or spec.origin is None:
        pytest.skip("axolotl is not installed")
    path = Path(spec.origin).parent / "monkeypatch" / "utils.py"  # alone: its package patches what it imports
    module = importlib.util.module_from_spec(found := importlib.util.spec_from_file_location("axolotl_utils", path))  # type: ignore[arg-type]
    found.loader.exec_module(module)
    batch = PackCollator(dialect="axolotl", pad_to=pad_to)([toy_pack(LENGTHS)])
    _, boundaries, longest = module.get_unpad_data(batch["attention_mask"])
    assert boundaries.tolist() == [0, 4, 6, 7, 10]
    assert longest == 4
