"""The training benchmark trains the same samples in every layout, and notices when they are not the same."""

import functools
import importlib
import inspect
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of torch and its compiler; as errors they would break it
    pytest.mark.skipif(torch.cuda.is_available(), reason="takes the sizes of a GPU there: run the benchmark itself"),
]


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The benchmark without real lengths: it draws some, the same everywhere."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    module = importlib.import_module("bench_train")
    monkeypatch.setattr(module, "SHARED_DATA", tmp_path)
    return module


@pytest.mark.long
def test_quick_run_on_a_cpu(bench, capsys):
    rows = bench.measure(True)
    said = capsys.readouterr().err
    for what in ("flash_attn", "flex attention", "peak memory", "bf16"):
        assert f"not measured: no CUDA device: {what}" in said
    assert rows[0].name.startswith("verify_packing")
    assert rows[0].ours == rows[0].peer == 2
    real = {row.peer_name: row for row in rows if row.unit == "%"}
    assert 98 < real["padded"].ours <= 100  # the packs are full
    assert real["padded"].peer < real["padded, sorted in the step"].peer < 96
    (longest,) = (row for row in rows if row.unit == "tokens")
    assert longest.ours == 512 < longest.peer  # a fixed number of samples makes a row of any length
    trained = [row for row in rows if row.unit == "useful tokens/s"]
    assert len(trained) == 5 + 3  # boundaries against five peers, the dense mask against padding and the limit
    assert all(row.ours > 0 and row.peer > 0 for row in trained)
    assert [row.aim for row in trained if "T × T" in row.name] == [None] * 3


def test_leak_is_noticed_before_anything_is_timed(bench, monkeypatch):
    """Attention that forgets the boundaries is as fast as one pleases; its figures would be worth nothing."""
    right = bench._by_segment
    monkeypatch.setattr(bench, "_by_segment", lambda *args, cu_seq_lens_q, **others: right(*args, **others))
    monkeypatch.setattr(bench, "in_turn", lambda *args, **others: pytest.fail("timed"))
    size = bench._SIZES["cpu", True]
    attentions = bench._attentions("cpu")
    with pytest.raises(AssertionError, match="sdpa_by_segment: loss"):
        bench._rows("T0", size, bench._Training(size, "cpu"), attentions)


def test_padded_batches_keep_to_the_positions_of_a_row(bench):
    lengths = [3, 2, 4, 8, 1, 1]
    groups = bench._padded_groups([{"input_ids": [0] * length} for length in lengths], 8)
    assert [[len(sample["input_ids"]) for sample in group] for group in groups] == [[3, 2], [4], [8], [1, 1]]


def test_kernel_of_torch_is_called_as_it_wants_to_be(bench, monkeypatch):
    """It needs a GPU; here a slow one of the same signature stands in, and must agree with SDPA by segment."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    signature = inspect.signature(varlen.varlen_attn)

    @functools.wraps(varlen.varlen_attn)
    def slow(*args, **others):
        bound = signature.bind(*args, **others).arguments
        assert bound["window_size"] == (-1, 0)
        assert bound["cu_seq_q"].dtype == torch.int32
        assert bound["max_q"] >= bound["cu_seq_q"].diff().max()
        query, key, value = (bound[name].transpose(0, 1)[None] for name in ("query", "key", "value"))
        out, _ = bench._by_segment(
            None, query, key, value, None, scaling=bound["scale"], cu_seq_lens_q=bound["cu_seq_q"]
        )
        return out[0]

    monkeypatch.setattr(varlen, "varlen_attn", slow)
    query, key, value = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    for options in ({}, {"cu_seq_lens_q": torch.tensor([0, 4, 6], dtype=torch.int32), "max_length_q": 4}):
        expected, _ = bench._by_segment(None, query, key, value, None, scaling=0.3, **options)
        found, _ = bench._by_varlen(None, query, key, value, None, scaling=0.3, **options)
        assert found.shape == (1, 6, 4, 8)
        assert torch.equal(found, expected)
