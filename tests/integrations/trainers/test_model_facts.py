"""Facts of models: whether tokens see later ones is measured on a small model, and not told by imports."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.23")

from brimful.integrations.trainers.attention import collator_for  # noqa: E402
from brimful.integrations.trainers.model_facts import facts_of  # noqa: E402
from brimful.testing.toys import toy_tree  # noqa: E402
from brimful.trees import small_models  # noqa: E402
from brimful.trees.small_models import small_config  # noqa: E402
from brimful.verify.models import WITHOUT_SMALL_FORM, tiny_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def encoder(name, **settings):
    kind = getattr(transformers, name)
    config = small_config(kind.config_class)
    config.update(settings)
    return kind(config)


CAUSAL = ["gpt2", "xglm", "gemma4_text", "trocr", "phi4_multimodal", "llama", "opt", "ctrl", "modernbert-decoder"]
BOTH_WAYS = ["bert", "roberta", "cpmant", "xlnet"]


@pytest.mark.parametrize("family", CAUSAL)
def test_causal_models_are_not_taken_for_others(family):
    """Cross attention, towers and other classes of the module import masks of both directions."""
    model = tiny_model(family)
    assert facts_of(model).bidirectional == ""
    assert collator_for(model, device="cpu", quiet=True)([toy_tree([[5, 6, 7], [8, 9]]).flat()])


@pytest.mark.parametrize("family", BOTH_WAYS)
def test_models_of_both_directions_are_recognized(family):
    assert facts_of(tiny_model(family)).bidirectional == "attends in both directions"


@pytest.mark.parametrize(
    "make",
    [
        lambda: encoder("BertModel"),
        lambda: encoder("ModernBertModel"),
        lambda: encoder("T5EncoderModel", is_encoder_decoder=False),
        lambda: encoder("DebertaV2Model"),
        lambda: encoder("BertForMaskedLM"),
        lambda: encoder("T5ForConditionalGeneration"),
        lambda: encoder("PaliGemmaForConditionalGeneration"),
        lambda: transformers.Gemma3TextConfig(use_bidirectional_attention=True),
    ],
)
def test_encoders_and_models_with_a_prefix_are_recognized(make):
    """PaliGemma lets the tokens of a prefix see each other; a switch makes Gemma 3 an encoder."""
    assert facts_of(make()).bidirectional == "attends in both directions"


def test_switches_of_the_configuration_decide():
    assert facts_of(transformers.BertConfig(is_decoder=True)).bidirectional == ""
    assert facts_of(transformers.BertConfig()).bidirectional != ""
    assert facts_of(transformers.Gemma3TextConfig()).bidirectional == ""
    assert facts_of(transformers.Gemma3Config()).overlays


def test_the_model_itself_is_not_run_and_a_question_is_asked_once(monkeypatch):
    """Its forward may take minutes or another device; and nothing of the caller's changes."""
    model = tiny_model("gpt2")
    model.config.n_embd += 4  # of a size that no other test has
    model.forward = None
    made, build = [], small_models.small_model
    monkeypatch.setattr(small_models, "small_model", lambda *arguments: made.append(1) or build(*arguments))
    model.config.scale_attn_by_inverse_layer_idx = True  # a switch that no other test has
    state = torch.get_rng_state()
    with torch.device("meta"):
        assert [facts_of(model).bidirectional for _ in range(3)] == [""] * 3
    assert len(made) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_a_model_without_a_small_form_is_judged_by_its_source_and_says_so(monkeypatch):
    """Custom code may name its sizes in another way."""

    def refuse(*arguments):
        raise ValueError("odd")

    monkeypatch.setattr(small_models, "small_config", refuse)
    words = facts_of(tiny_model("gpt2")).bidirectional
    assert words.startswith("has masks of both directions, and no small model of it could be made")
    assert facts_of(transformers.BertConfig(is_decoder=True)).bidirectional == ""
    assert facts_of(tiny_model("llama")).bidirectional == ""


CAUSAL_TYPES = sorted(
    set(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - {*WITHOUT_SMALL_FORM}
)


@pytest.mark.long
@pytest.mark.parametrize("family", CAUSAL_TYPES)
def test_every_causal_type_is_what_it_computes(family):
    """Of all in the installed Transformers: whether another last token moves earlier logits."""
    model = tiny_model(family)
    ids = torch.arange(10, 22)[None]
    others = ids.clone()
    others[0, -1] = 90
    with torch.no_grad():
        one, other = (model(input_ids=tokens, use_cache=False).logits[:, :-1] for tokens in (ids, others))
    is_moved = bool((one - other).abs().max() > 1e-4)
    words = facts_of(model).bidirectional
    assert bool(words) == is_moved, words
