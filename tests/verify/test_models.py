"""Packed equals one by one, below 1e-5 in fp32, for the architectures that users train; and what leaks is known."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.doctor.probing.model_facts import tokens_of_config  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.media import MediaKind  # noqa: E402
from brimful.verify import Status, verify_packing  # noqa: E402
from brimful.verify.drawn_samples import random_samples  # noqa: E402
from brimful.verify.models import WITHOUT_SMALL_FORM, load_model, tiny_media_model, tiny_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

CAUSAL = sorted(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
ATTENTION = ("eager", "sdpa", "flex_attention")
ISOLATED = ("llama", "qwen2", "qwen3", "gemma", "gemma3", "mistral", "qwen3_moe")
SHORT = ("eager", "sdpa")
"""Run by `make test`, of one model. Flex attention and every model take seconds each, and `make test-all` runs them."""


@pytest.mark.parametrize(
    ("name", "attention"),
    [("llama", SHORT), *(pytest.param(name, ATTENTION, marks=pytest.mark.long) for name in ISOLATED)],
)
def test_packed_equals_one_by_one(name, attention):
    """Logits, loss and gradients in eager, SDPA and flex attention, with padding at the end; the promise of the library."""
    report = verify_packing(tiny_model(name), PackCollator(pad_to=64), random_samples(128), attention=attention)
    assert report.ok, str(report)
    for check in ("isolation", "logits", "loss", "gradients"):
        passed = [found.attention for found in report.findings if (found.check, found.status) == (check, Status.PASS)]
        assert passed == list(attention), str(report)
    assert all(found.measured is None or found.measured < 1e-5 for found in report.findings)


def test_windows_are_shorter_than_the_samples():
    """A window that no sample reaches would test plain attention again."""
    assert tiny_model("mistral").config.sliding_window < max(len(one["input_ids"]) for one in random_samples(128))
    assert set(tiny_model("gemma3").config.layer_types) == {"sliding_attention", "full_attention"}


def test_experts_see_no_padding():
    """Padding is routed like any token and must not move the others."""
    report = verify_packing(tiny_model("qwen3_moe"), PackCollator(pad_to=96), random_samples(128), attention="eager")
    inert = [found for found in report.findings if found.check == "padding" and found.attention]
    assert [found.status for found in inert] == [Status.PASS]


@pytest.mark.long
def test_bf16_passes_within_its_precision_and_a_leak_does_not():
    """The looser limit must still be far below what a leak does."""
    model = tiny_model("qwen2", dtype="bfloat16")
    assert verify_packing(model, PackCollator(), random_samples(128), attention="eager").ok
    leaky = verify_packing(
        model, lambda samples: {**PackCollator()(samples), "use_cache": True}, random_samples(128), attention="eager"
    )
    assert "isolation" in {found.check for found in leaky.failures}


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "olmo_hybrid", "bamba"])
def test_recurrent_models_refuse_without_their_kernels(name):
    """With seq_idx and cu_seq_lens no state leaks silently: this machine's fallback refuses, and the report says so."""
    pytest.importorskip("transformers", minversion="5.20")
    report = verify_packing(tiny_model(name), PackCollator(), random_samples(128), attention="eager")
    assert not report.proven
    assert not report.failures
    assert "keep packed sequences apart" in report.verdict


def test_a_saved_model_is_loaded_and_verified(tmp_path):
    """--model with a directory: the user's own weights."""
    tiny_model("llama").save_pretrained(tmp_path)
    report = verify_packing(load_model(str(tmp_path)), PackCollator(), random_samples(128), attention="sdpa")
    assert report.ok


def test_weights_are_the_same_for_the_same_seed_and_leave_the_users_randomness_alone():
    """A report must be repeatable, and must not move a training run's random numbers."""
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, two = tiny_model("qwen2", seed=3), tiny_model("qwen2", seed=3)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "words"), [("quen2", "did you mean .*qwen2"), ("t5", "no causal language model"), ("", "model_type")]
)
def test_an_unknown_architecture_is_named_with_its_neighbours(name, words):
    """A typing error costs seconds, not a traceback of a library."""
    with pytest.raises(SettingsError, match=words):
        tiny_model(name)


def test_a_directory_without_a_model_is_named(tmp_path):
    """Most users come by --model."""
    with pytest.raises(SettingsError, match="no causal language model could be loaded"):
        load_model(str(tmp_path))


def test_what_has_no_small_form_is_refused_by_name_and_counted_in_the_docs():
    """A list kept in a document alone is wrong at the next release."""
    pytest.importorskip("transformers", minversion="5.20")
    text = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
    if transformers.__version__.startswith("5.23."):
        small = len(CAUSAL) - len(WITHOUT_SMALL_FORM)
        assert f"Of the {len(CAUSAL)} causal types of Transformers 5.23, {small} have" in text
    for name, reason in WITHOUT_SMALL_FORM.items():
        assert name in CAUSAL
        with pytest.raises(SettingsError, match=reason[:30]):
            tiny_model(name)


@pytest.mark.parametrize("name", ["gemma4", "gpt_neo", "dbrx", "whisper", "zamba"])
def test_architectures_that_say_their_sizes_in_other_words_are_small(name):
    """Sizes for each layer, layers by patterns, parts without a default, decoders of encoder-decoders, shared blocks."""
    pytest.importorskip("transformers", minversion="5.20")
    assert tiny_model(name).num_parameters() < 1_000_000


@pytest.mark.chaos
@pytest.mark.parametrize("name", CAUSAL)
def test_every_causal_type_is_small_and_trains(name):
    """Every architecture of the installed Transformers; a new one that does not shrink is to be listed or mended."""
    if name in WITHOUT_SMALL_FORM:
        pytest.skip(WITHOUT_SMALL_FORM[name])
    model = tiny_model(name)
    ids = torch.arange(3, 19)[None]
    assert model.num_parameters() < 50_000_000
    assert torch.isfinite(model(input_ids=ids, labels=ids, use_cache=False).loss)


QWEN = {"image": {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}}


@pytest.mark.parametrize(
    ("family", "settings", "sizes"),
    [
        ("qwen2-audio", {"audio": {"chunk_length": 2, "sampling_rate": 16_000, "hop_length": 160}}, {"audio_config.max_source_positions": 100}),
        ("qwen2.5-vl", QWEN, {"vision_config.patch_size": 14, "vision_config.spatial_merge_size": 2, "vision_config.tokens_per_second": 3}),
        ("internvl", {"image": {"width": 112, "height": 56, "image_seq_length": 8}}, {"vision_config.patch_size": [14, 14], "vision_config.image_size": [56, 112], "image_seq_length": 8}),
        ("llava", {"image": {"width": 56, "patch_size": 14, "vision_feature_select_strategy": "full"}}, {"vision_config.image_size": 56, "vision_feature_select_strategy": "full"}),
    ],
)  # fmt: skip
def test_a_small_model_of_a_family_takes_the_sizes_of_its_packs(family, settings, sizes):
    """Its tower refuses the features of the packs otherwise; tokens of media that they lack are the last of the vocabulary."""
    kind = MediaKind.AUDIO if family == "qwen2-audio" else MediaKind.IMAGE
    model = tiny_media_model({"family": family, **settings}, {kind: 5}, 64, tokens_per_second=3)
    for path, size in sizes.items():
        value = model.config
        for name in path.split("."):
            value = getattr(value, name)
        assert value == size, path
    names = ["image", "video", "audio"]
    tokens = {name: tokens_of_config(model.config, name) for name in names}
    for number, name in enumerate(names):
        assert tokens[name] in ([], [5 if name == kind.value else 63 - number] * len(tokens[name])), name
    assert model.get_input_embeddings().weight.shape[0] == 64
    with pytest.raises(SettingsError, match="no small model of pixtral"):
        tiny_media_model({"family": "pixtral"}, {}, 64)
