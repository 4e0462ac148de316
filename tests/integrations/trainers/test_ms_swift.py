"""The plugin of ms-swift: its packing data set, its check, and its own template and collator on our packs."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

from brimful.errors import MissingExtraError, OversizedSampleError, SettingsError
from brimful.integrations.trainers import ms_swift
from brimful.integrations.trainers.ms_swift import SwiftPacks, install
from tests.integrations.trainers.swift_run import CANNOT

pytestmark = pytest.mark.filterwarnings("ignore")


class Encoded:
    """As ms-swift's LazyLLMDataset: lengths as a column, samples by index."""

    def __init__(self, lengths):
        self._lengths = lengths

    def __getitem__(self, key):
        return self._lengths if key == "lengths" else {"sample": key}


def packed(lengths, **options):
    return SwiftPacks(SimpleNamespace(max_length=7), Encoded(lengths), 4, **options)


def groups(packs):
    return sorted(sorted(row["sample"] for row in packs[index]) for index in range(len(packs)))


def test_ms_swifts_arguments_have_their_meaning():
    """Lengths 3 3 5 6 1 1 at 7: binpack needs three packs, sequential keeps the order and needs four."""
    lengths = [3, 3, 5, 6, 1, [1]]
    binpack = packed(
        lengths, packing_num_proc=8, strict=True, load_from_cache_file=False, multiprocessing_context="spawn"
    )
    assert len(binpack) == 3
    assert sorted(sample for group in groups(binpack) for sample in group) == list(range(6))
    assert binpack.packed_length.max() <= 7
    assert groups(packed(lengths, packing_strategy="sequential")) == [[0, 1], [2], [3, 4], [5]]
    assert groups(packed(lengths, packing_strategy="first_fit")) == [[0, 1, 4], [2, 5], [3]]
    assert len(packed(lengths, packing_length=19)) == 1
    assert binpack.template.packing
    assert binpack.template.padding_free


def test_every_rank_has_the_same_packs_without_asking():
    lengths = np.random.default_rng(0).integers(1, 8, 200).tolist()
    assert groups(packed(lengths)) == groups(packed(lengths, packing_num_proc=3))


def test_a_sample_longer_than_a_pack_is_refused_with_ms_swifts_flags():
    with pytest.raises(
        OversizedSampleError, match=r"sample 1 has 9 tokens and packing_length is 7: .*--truncation_strategy"
    ):
        packed([3, 9])


@pytest.fixture
def swift(monkeypatch):
    """Modules with the names that the plugin replaces, where ms-swift is not installed."""
    packages = ("swift", "swift.dataset", "swift.arguments", "swift.arguments.base_args", "swift.pipelines")
    for name in (*packages, "swift.pipelines.train"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    parts = {
        name: ModuleType(name)
        for name in (
            "swift.dataset.packing",
            "swift.arguments.sft_args",
            "swift.arguments.base_args.base_args",
            "swift.pipelines.train.sft",
        )
    }
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)
    theirs = type("PackingDataset", (), {})
    for name in ("swift.dataset.packing", "swift.pipelines.train.sft"):
        parts[name].PackingDataset = theirs  # type: ignore[attr-defined]
    sys.modules["swift.dataset"].PackingDataset = theirs  # type: ignore[attr-defined]
    parts["swift.arguments.sft_args"].SftArguments = type("SftArguments", (), {"_check_padding_free": None})  # type: ignore[attr-defined]
    parts["swift.arguments.base_args.base_args"].BaseArguments = type(  # type: ignore[attr-defined]
        "BaseArguments", (), {"_init_model_kwargs": lambda _: None}
    )
    parts["swift.pipelines.train.sft"].SwiftSft = type(  # type: ignore[attr-defined]
        "SwiftSft", (), {"_prepare_dataset": lambda _: ["theirs", None]}
    )
    return parts


def test_the_plugin_replaces_what_the_pipeline_looks_up(swift):
    """The pipeline names the class itself: replacing it in one module alone would do nothing."""
    install()
    install()
    assert sys.modules["swift.dataset"].PackingDataset is SwiftPacks
    assert swift["swift.pipelines.train.sft"].PackingDataset is SwiftPacks
    # Without the flags of a stream the pipeline reads its data as before.
    pipeline = swift["swift.pipelines.train.sft"].SwiftSft()
    pipeline.args = SimpleNamespace()
    assert pipeline._prepare_dataset() == ["theirs", None]


@pytest.mark.parametrize("attention", [None, "sdpa", "flex_attention", "flash_attn", "flash_attention_2", "eager"])
def test_packing_no_longer_needs_flash_attention(swift, attention):
    install()
    args = swift["swift.arguments.sft_args"].SftArguments()
    args.packing, args.padding_free, args.attn_impl, args.sequence_parallel_size = True, False, attention, 1
    args._check_padding_free()
    assert args.padding_free


@pytest.mark.parametrize("attention", [None, "sdpa", "eager", "flex_attention", "flash_attn", "flash_attention_2"])
def test_sequence_parallelism_sees_packs_with_flash_attention_alone(swift, attention):
    """With sdpa on two ranks of ms-swift 4.6 a sample that begins where a rank's part begins saw its neighbor: Transformers
    looks for packs in the positions of the part. Flash attention gets the boundaries of the whole row."""
    install()
    args = swift["swift.arguments.sft_args"].SftArguments()
    args.packing, args.padding_free, args.attn_impl, args.sequence_parallel_size = True, False, attention, 2
    if str(attention).startswith("flash"):
        args._check_padding_free()
        return
    with pytest.raises(
        SettingsError, match=f"--attn_impl {attention}: .*the only one if --sequence_parallel_size is above"
    ):
        args._check_padding_free()


def test_an_attention_that_is_none_is_refused_with_those_that_are(swift):
    install()
    args = swift["swift.arguments.sft_args"].SftArguments()
    args.packing, args.padding_free, args.attn_impl, args.sequence_parallel_size = True, False, "paged", 1
    with pytest.raises(SettingsError, match="--packing true does not go with --attn_impl paged: use --attn_impl sdpa"):
        args._check_padding_free()


def test_without_ms_swift_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "swift", None)
    monkeypatch.setitem(sys.modules, "swift.dataset.packing", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        install()


@pytest.mark.parametrize("name", ["peft", "torchvision", None])
def test_what_ms_swift_itself_misses_is_not_called_ms_swift(name, monkeypatch):
    """To install ms-swift would not help."""
    monkeypatch.setattr(ms_swift, "import_module", mock.Mock(side_effect=ModuleNotFoundError("none", name=name)))
    with pytest.raises(ModuleNotFoundError, match="none"):
        install()


def test_swift_sft_packs_by_a_plan_and_its_batches_isolate(tmp_path):
    """The whole command with the plugin; then the batch that its collator makes, against samples alone."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.integrations.trainers.swift_run", str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(f"ms-swift cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    assert "isolated: " in done.stdout
