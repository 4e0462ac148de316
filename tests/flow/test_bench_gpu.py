"""What runs on a GPU runs here too, small; a stage that fails or hangs costs its own rows."""

import importlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

gpu = importlib.import_module("benchmarks.gpu")


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="takes the kernels of a GPU there: run make gpu")
def test_every_stage_runs_on_a_cpu(tmp_path):
    assert gpu.main(["--tiny", "--folder", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    rows = {stage: [] for stage in gpu.STAGES}
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            stage = line.removeprefix("## ")
        elif line.startswith(("| ", "- ")):
            rows[stage].append(line)
    assert all(len(found) > 2 for found in rows.values())  # the head of the table, and rows
    assert "PASS" in rows["verify"][1]
    assert "PASS" in rows["verify"][2]
    flat, trees = rows["trees"][1:3]
    assert flat.split(" | ")[5][:6] == trees.split(" | ")[5][:6]  # the loss
    assert "samples were shown to be apart" in rows["probe"][-1]
    missing = [line for line in path.read_text().splitlines() if line.startswith("- ")]
    assert [line.split(": ")[1] for line in missing] == ["trees, flex", "trees, TRL's kernel"]


@pytest.mark.filterwarnings("ignore")
def test_kernel_of_trl_is_called_as_trl_calls_it(monkeypatch):
    """It is for GPUs alone; here a slow one of its signature stands in."""
    packing = pytest.importorskip("trl.experimental.async_grpo.packing")

    def slow(query, key, value, edges_q, edges_k, longest_q, longest_k, *, softmax_scale, causal, window_size):
        assert causal
        assert window_size == (-1, -1)
        assert (longest_q, longest_k) == (edges_q.diff().max(), edges_k.diff().max())
        runs = []
        for run, keys in zip(pairwise(edges_q.tolist()), pairwise(edges_k.tolist()), strict=True):
            parts = [
                part[slice(*edges)].transpose(0, 1)[None] for part, edges in ((query, run), (key, keys), (value, keys))
            ]
            (length, depth) = (part.shape[2] for part in parts[:2])
            mask = torch.ones(length, depth, dtype=torch.bool).tril(depth - length)
            out = torch.nn.functional.scaled_dot_product_attention(
                *parts, attn_mask=mask, scale=softmax_scale, enable_gqa=True
            )
            runs.append(out[0].transpose(0, 1))
        return torch.cat(runs)

    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=slow))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    rows = {row[0]: row for row in gpu._trees("cpu", True)}
    losses = {name: float(row[5]) for name, row in rows.items() if len(row) > 1}
    assert set(losses) == {"flat packs", "trees, gathered", "trees, TRL's kernel"}
    assert max(losses.values()) - min(losses.values()) < 1e-6 * losses["flat packs"]


def test_a_stage_that_takes_too_long_is_named():
    assert list(gpu._rows_of("verify", True, 0)) == [["not measured: the rest of verify: its 0 seconds were over"]]


def test_a_stage_whose_process_fails_is_named(monkeypatch, tmp_path):
    """As after a fault on the device, which no Python code catches."""
    script = tmp_path / "stage.py"
    script.write_text("import os; print('noise'); print('[\"one row\", \"1\"]', flush=True); os.abort()")
    monkeypatch.setattr(gpu, "__file__", str(script))
    rows = list(gpu._rows_of("verify", True, 60))
    assert rows == [["one row", "1"], ["not measured: the rest of verify: its process ended with status -6"]]
