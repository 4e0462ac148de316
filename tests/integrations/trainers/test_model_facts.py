"""Facts of models: whether tokens see later ones is measured on a small model, and not told by imports."""

import inspect
import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.23")

from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers import model_facts  # noqa: E402
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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"layer_types": ["full_attention"], "sliding_window": 4}, False),
        *[({"layer_types": ["full_attention", f"{kind}_attention"]}, True) for kind in ("sliding", "chunked")],
        *[({"layer_types": layers, "sliding_window": 4}, True) for layers in (None, [])],
        *[({"sliding_window": 4, "use_sliding_window": flag}, flag) for flag in (True, False)],
        *[({"sliding_window": None}, False), ({}, False)],
    ],
)
def test_windows_are_of_layers_or_of_all(settings, expected):
    """One mask for all layers would replace them."""
    assert model_facts.has_windows(SimpleNamespace(**settings)) is expected


MASK = "config=c, inputs_embeds=e, attention_mask=m"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        *[
            (f"mask({MASK}, position_ids=p)", True),
            (f"mask({MASK})", False),
            (f"mask({MASK}, position_ids=None)", False),
        ],
        *[
            ("mask(config=c, attention_mask=m, position_ids=p)", False),
            ("mask(inputs_embeds=e, position_ids=p)", False),
        ],
        *[(f"make_bidirectional(m, {MASK})", False), (f"mask({MASK}, **others)", False), ("", False)],
        *[(f"mask({MASK}, position_ids=p); mask({MASK})", False), (f"mask({MASK}, position_ids=p); other(1)", True)],
        ("dict_of = {'config': c, 'input_embeds': e, 'attention_mask': m, 'position_ids': p}; mask(**dict_of)", True),
        ("dict_of = {'config': c, 'input_embeds': e, 'attention_mask': m, 5: p, **p}", False),
    ],
)
def test_every_mask_of_a_module_has_to_see_positions(source, expected, monkeypatch):
    """One layer whose mask does not see them lets samples see each other."""
    module = ModuleType("modeling_toy")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(inspect, "getsource", lambda found: source if found is module else "")
    for cached in (model_facts._source, model_facts._masks_see_positions):
        cached.cache_clear()
    try:
        assert model_facts._masks_see_positions(module.__name__) is expected
    finally:
        for cached in (model_facts._source, model_facts._masks_see_positions):
            cached.cache_clear()


def test_a_module_without_a_source_has_no_names(monkeypatch, tmp_path):
    """Built in, gone, damaged, or never imported."""
    (tmp_path / "damaged.py").write_text("def (")
    for name in ("gone", "damaged"):
        module = ModuleType(f"toy_{name}")
        module.__file__ = str(tmp_path / f"{name}.py")
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("sys", "toy_gone", "toy_damaged", "toy_unknown"):
        assert model_facts._names_in(name) == set()


def test_a_model_is_found_in_its_wrappers():
    """PEFT in a compiled model in a data-parallel one."""
    model = SimpleNamespace()
    adapted = SimpleNamespace(get_base_model=lambda: model)
    for wrapped in (
        model,
        adapted,
        SimpleNamespace(module=adapted),
        SimpleNamespace(_orig_mod=SimpleNamespace(module=model)),
    ):
        assert model_facts.unwrapped(wrapped) is model


@pytest.mark.parametrize(("padding", "start"), [(None, 2), (0, 1), (1, 2), (5, 6)])
def test_positions_begin_after_the_token_of_padding(padding, start):
    config = transformers.RobertaConfig(is_decoder=True, pad_token_id=padding)
    assert facts_of(config).position_start == start
    assert facts_of(transformers.LlamaConfig(pad_token_id=padding)).position_start == 0


def test_a_class_is_the_one_that_a_configuration_names():
    """Or the causal one of its type; the default of the library is not a wish, and what is not a model is refused."""
    named = transformers.LlamaConfig(architectures=["NoSuchClass", "LlamaForSequenceClassification"])
    assert facts_of(named).name == "LlamaForSequenceClassification"
    assert facts_of(transformers.LlamaConfig()).name == "LlamaForCausalLM"
    for wish, expected in ((None, None), ("sdpa", None), ("eager", "eager"), ("flex_attention", "flex_attention")):
        config = transformers.LlamaConfig()
        config._attn_implementation = wish
        assert facts_of(config).wish == expected
    assert facts_of(transformers.LlamaConfig()).supported >= {"eager", "sdpa", "flex_attention", "flash_attention_2"}
    assert facts_of(transformers.BloomConfig()).takes_a_mask is False
    unknown = SimpleNamespace(model_type="toy")
    unknown.get_text_config = lambda: unknown
    assert (facts_of(unknown).name, facts_of(unknown).supported) == ("toy", {"eager"})
    with pytest.raises(SettingsError, match="a model of Transformers"):
        facts_of(5)


@pytest.mark.parametrize("is_decoder", [True, False])
def test_the_whole_model_says_that_it_is_a_decoder(is_decoder, monkeypatch):
    """Not the language model inside, where no small model shows the direction."""
    monkeypatch.setattr(model_facts, "sees_later_tokens", lambda *_: None)
    configs = [SimpleNamespace(is_decoder=is_decoder), SimpleNamespace(is_decoder=not is_decoder)]
    words = model_facts._direction([(None, config) for config in configs], {"create_bidirectional_mask"})
    assert bool(words) is not is_decoder
    assert model_facts._direction([(None, configs[0])], {"other"}) == ""


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
