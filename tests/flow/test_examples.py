"""Every example and every command of the docs runs as it stands, and what they say of Trainer and of files is true."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from brimful import PackCollator, PackedDataset, PackLoader, open_packs
from brimful.cli import main
from brimful.serve import Pack
from brimful.testing.toys import ToyPacks, toy_pack

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("[0-9]*.py"))


def run(name: str, tmp_path: Path, *arguments: str) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "BRIMFUL_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")} | {
        p.name for p in tmp_path.iterdir()
    }
    # Comparisons of a tokenizer are for all jobs, whatever folder they keep their lengths in.
    assert left <= {"cache", "cache/proofs", "cache/tokenizers"}, "an example cleans up"
    return done.stdout


def run_here(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What an example prints that needs no process of its own: another one would import everything again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert not list(tmp_path.iterdir()), "an example cleans up"
    return capsys.readouterr().out


def test_no_example_is_left_out() -> None:
    assert FILES == [
        "01_pack_your_chats.py",
        "02_plan_only.py",
        "03_plain_pytorch.py",
        "04_transformers_trainer.py",
        "05_trl_sft.py",
        "06_lightning.py",
        "07_torchtitan_loader.py",
        "08_ms_swift_plugin.py",
        "09_veomni_collator.py",
        "10_shared_plan.py",
        "11_audio_as_it_arrives.py",
        "12_preferences.py",
        "13_packed_against_padded.py",
        "14_verl_fine_tuning.py",
        "15_trees_against_flat.py",
    ], "a new example needs a test here"


def test_pack_your_chats(tmp_path, monkeypatch, capsys) -> None:
    out = run_here("01_pack_your_chats.py", tmp_path, monkeypatch, capsys)
    samples, dropped = re.search(r"^samples +(\d+) in memory", out, re.M), re.search(r"^dropped +(\d+)", out, re.M)
    checked = re.search(r"StoreCheck\(.*samples=(\d+)", out)
    assert samples
    assert dropped
    assert checked
    assert int(samples[1]) == int(dropped[1]) + int(checked[1]), "every sample is in a pack or was dropped"


def test_plan_only(tmp_path, monkeypatch, capsys) -> None:
    out = run_here("02_plan_only.py", tmp_path, monkeypatch, capsys)
    assert "pack 2: sample 0 (3 tokens), sample 1 (3 tokens), sample 5 (1 tokens)" in out
    assert re.search(r"split: 0 of [\d,]+ tokens are lost", out)
    assert out.endswith(" again\n")


@pytest.mark.long
@pytest.mark.parametrize("name", ["03_plain_pytorch.py", "04_transformers_trainer.py"])
def test_training_lowers_the_loss(name, tmp_path) -> None:
    pytest.importorskip("transformers")
    out = run(name, tmp_path)
    losses = [float(number) for number in re.findall(r"loss'?:? '?(\d+\.\d+)", out)]
    assert len(losses) >= 6
    assert losses[5] < losses[0] - 0.1


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "library", "line"),
    [
        ("05_trl_sft.py", "trl", r"^loss "),
        ("06_lightning.py", "lightning", r"^stopped after 3 and continued: the same losses$"),
        ("07_torchtitan_loader.py", "torch", r"^resumed with the batch that comes next"),
        ("08_ms_swift_plugin.py", "swift", r"^loss "),
        (
            "11_audio_as_it_arrives.py",
            "transformers",
            r"^started 2 times, .*the samples and losses of a training without",
        ),
        ("12_preferences.py", "transformers", r"^accuracy of the last micro-batch"),
        (
            "10_shared_plan.py",
            "torch",
            r"^rank 1 was killed after step 8: .*\n.*\n\d+ steps in 2 epochs: the same losses$",
        ),
        ("09_veomni_collator.py", "transformers", r"^loss of the step (\d+\.\d+), of its samples one by one \1$"),
        ("14_verl_fine_tuning.py", "transformers", r"^loss of the step (\d+\.\d+), of its samples one by one \1$"),
    ],
)
def test_examples_of_trainers(name, library, line, tmp_path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    out = run(name, tmp_path)
    assert re.search(line, out, re.M), out


@pytest.mark.long
def test_packed_and_padded_losses_agree(tmp_path) -> None:
    """Samples of a pack that see each other have other losses than alone."""
    pytest.importorskip("transformers")
    runs = json.loads(run("13_packed_against_padded.py", tmp_path, "--steps", "3", "--json"))
    packed, padded = runs["packed"], runs["padded"]
    assert len(packed["losses"]) == 3
    assert packed["losses"][-1] < packed["losses"][0] - 0.1
    assert packed["losses"] == pytest.approx(padded["losses"], abs=1e-4)
    assert packed["real_tokens"] == padded["real_tokens"]
    assert packed["fill_ratio"] == 1.0
    assert padded["fill_ratio"] < 0.9


@pytest.mark.long
def test_losses_of_trees_and_flat_packs_agree(tmp_path) -> None:
    """Without it trees would be faster at another loss."""
    rows = json.loads(run("15_trees_against_flat.py", tmp_path, "--steps", "3", "--json"))
    assert len(rows) == 3
    assert sum(row["samples"] for row in rows) > 20
    for row in rows:
        assert row["flat_loss"] == pytest.approx(row["tree_loss"], rel=1e-5)
    assert rows[-1]["tree_loss"] < rows[0]["tree_loss"]


def test_packed_and_padded_losses_of_images_agree(media_home: Path, media_packs: Path) -> None:
    """Without it the example shows a model whose samples see each other's pictures."""
    pytest.importorskip("torch")
    compare = runpy.run_path(str(EXAMPLES / "13_packed_against_padded.py"))["compare"]
    packed, padded = compare(media_home, steps=2, packs_per_step=2)
    assert packed.losses == pytest.approx(padded.losses, abs=1e-4)
    assert packed.losses[1] < packed.losses[0]
    assert packed.real_tokens == padded.real_tokens == packed.positions < padded.positions


@pytest.mark.long
def test_real_speech_arrives(data_dir, tmp_path, tmp_path_factory) -> None:
    """Clips of LJ Speech with their words, as they are recorded and transcribed."""
    pytest.importorskip("transformers")
    recordings = tmp_path_factory.mktemp("speech")
    for line in (data_dir / "audio" / "audio.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["text"] and row["duration_s"] < 12:
            name = Path(row["audio"])
            (recordings / name.name).symlink_to(data_dir / "audio" / name)
            (recordings / f"{name.stem}.txt").write_text(row["text"], encoding="utf-8")
    out = run("11_audio_as_it_arrives.py", tmp_path, str(recordings))
    assert re.search(r"^started 2 times, .*the samples and losses of a training without a kill$", out, re.M), out


def test_trainer_takes_packs_whole_and_averages_the_loss_by_targets(tmp_path) -> None:
    """Two packs of one step, one with many targets and one with few: a mean of means would be another number."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments

    def without_targets(pack: Pack, kept: int) -> Pack:
        mask = pack.loss_mask & (np.arange(len(pack)) < kept)
        return Pack(pack.input_ids, mask, pack.cu_seqlens, pack.sample_ids, pack.starts)

    packs = ToyPacks([toy_pack([40, 24], seed=1), without_targets(toy_pack([30, 34], seed=2), 6)])
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=1000,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    sums, targets = [], []
    with torch.no_grad():
        for index in range(2):
            batch = PackCollator()([packs[index]])
            targets.append(int((batch["labels"] != -100).sum()))
            sums.append(float(model(**batch).loss) * targets[-1])
    assert targets == [62, 5]

    seen: list[object] = []

    def collate(features):
        seen.extend(features)
        batch = PackCollator()(features)
        assert "attention_mask" not in batch, "it would make flash attention ignore the boundaries"
        return batch

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    assert arguments.remove_unused_columns, "the default, which must do no harm"
    trainer = Trainer(model=model, args=arguments, train_dataset=packs, data_collator=collate)
    trainer.train()
    assert len(seen) == 2
    assert all(isinstance(pack, Pack) for pack in seen)
    logged = float(trainer.state.log_history[0]["loss"])
    assert logged == pytest.approx(sum(sums) / sum(targets), abs=2e-3)
    assert abs(sum(sums) / sum(targets) - np.mean([sums[0] / targets[0], sums[1] / targets[1]])) > 0.01


def blocks(page: str) -> list[tuple[str, str]]:
    text = (EXAMPLES.parent / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```(python|bash)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def made(tmp_path_factory, stdlib_chats):
    """A directory as the demo leaves it, with fewer chats."""
    pytest.importorskip("transformers")
    from brimful.cli.demo.toy_model import train_tokenizer

    here = tmp_path_factory.mktemp("demo")
    chats = stdlib_chats[:: -(-len(stdlib_chats) // 300)]
    (here / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    train_tokenizer([turn["content"] for chat in chats for turn in chat["messages"]], here / "tokenizer")
    return here


@pytest.fixture
def demo_files(made, monkeypatch):
    """That directory as the current one."""
    monkeypatch.chdir(made)
    monkeypatch.setenv("BRIMFUL_CACHE", str(made / "cache"))


def command(line: str) -> str:
    """Run a command line as shown, without its comment; its name."""
    arguments = shlex.split(line, comments=True)[1:]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0, line
    return arguments[0]


@pytest.mark.long
def test_the_quickstart_runs_as_shown(demo_files) -> None:
    ran = []
    for language, code in blocks("quickstart.md"):
        if language == "python":
            exec(compile(code, "quickstart.md", "exec"), {})
            ran.append("python")
        for line in code.splitlines() if language == "bash" else ():
            if line not in ("brimful demo -o demo", "cd demo"):  # the demo has tests of its own
                ran.append(command(line))
    assert ran == [
        "python",
        "pack",
        "report",
        *["inspect"] * 4,
        "python",
        "python",
        "measure",
        "plan",
        "write",
        "python",
    ]


@pytest.mark.long
def test_files_can_be_read_as_the_page_on_formats_shows(demo_files, capsys) -> None:
    command("brimful pack chats.jsonl -o packs --tokenizer tokenizer --max-length 2048 --overflow drop")
    packs = open_packs("packs")
    shown = []
    for _, code in blocks("formats.md"):
        if "polars" in code and importlib.util.find_spec("polars") is None:
            continue
        capsys.readouterr()
        exec(compile(code, "formats.md", "exec"), {})
        shown.append(capsys.readouterr().out)
    text = "\n".join(shown)
    assert f"{len(packs[0])} {np.diff(packs[0].cu_seqlens).tolist()} [-100 " in text, "tokens, lengths, labels"
    assert f"0 {packs[0].sample_ids.tolist()}" in text


def test_the_page_on_formats_names_every_key_and_column(demo_files) -> None:
    """A key that the page leaves out is written nowhere else."""
    command("brimful pack chats.jsonl -o packs --tokenizer tokenizer --max-length 2048 --overflow drop")
    page = (EXAMPLES.parent / "docs" / "formats.md").read_text(encoding="utf-8")
    for module in re.findall(r"<!-- docstring: ([\w.]+) -->", page):  # in their place on the site
        page += (importlib.import_module(module).__doc__ or "").replace("``", "`")
    header = json.loads(Path("packs/stream.json").read_bytes())
    names = {
        *header,
        *(f"identity.{key}" for key in header["identity"]),
        *json.loads(Path("packs/summary.json").read_bytes()),
    }
    for path in Path("packs/log").iterdir():
        names |= set(json.loads(path.read_bytes()))
    for path in (Path("packs/plan.arrow"), Path("packs/lengths.arrow"), *Path("packs/shards").iterdir()):
        schema = pa.ipc.open_file(pa.memory_map(str(path))).schema
        names |= {*schema.names, *json.loads(schema.metadata.get(b"brimful", b"{}"))}
    names |= set(PackLoader(PackedDataset("packs")).state_dict())
    missing = [n for n in names if f"`{n}`" not in page and f"`.{n.rpartition('.')[2]}`" not in page]
    assert missing == []


def test_the_checksum_is_what_the_page_says(demo_files) -> None:
    command("brimful pack chats.jsonl -o packs --tokenizer tokenizer --max-length 2048 --overflow drop")
    batch = pa.ipc.open_file(pa.memory_map(str(next(Path("packs/shards").iterdir())))).get_batch(0)
    for row in batch.slice(0, 3).to_pylist():
        data = b"".join(
            row[name] if dtype is None else np.array(row[name], dtype=dtype).tobytes()
            for name, dtype in (
                ("input_ids", "<i4"),
                ("loss_mask", None),
                ("lengths", "<i4"),
                ("sample_ids", "<i8"),
                ("starts", "<i4"),
            )
        )
        assert xxhash.xxh3_64_intdigest(data) == row["checksum"]
