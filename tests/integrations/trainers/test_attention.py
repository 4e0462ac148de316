"""Which attention is chosen on which machine, and which models are refused; what is chosen isolates."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.20")

from brimful import PackCollator  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers import attention  # noqa: E402
from brimful.integrations.trainers.attention import Machine, choose_attention, collator_for  # noqa: E402
from brimful.trees.attention import TREE_ATTENTION  # noqa: E402
from brimful.verify import verify_packing  # noqa: E402
from brimful.verify.drawn_samples import random_samples  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402
from tests.integrations.trainers.tiny import model as tiny  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

FLASH = frozenset({"flash_attn", "triton"})
MACHINES = [
    (Machine("cuda", (9, 0), FLASH | {"flash_attn_interface"}), "flash_attention_3", "no mask is needed"),
    (Machine("cuda", (9, 0), FLASH), "flash_attention_2", "no mask is needed"),
    (Machine("cuda", (8, 0), FLASH), "flash_attention_2", "no mask is needed"),
    (Machine("cuda", (8, 0), FLASH | {"flash_attn_interface"}), "flash_attention_2", "no mask is needed"),
    (Machine("cuda", (10, 0), FLASH | {"flash_attn_interface"}), "flash_attention_2", "no mask is needed"),
    (Machine("cuda", (8, 0), frozenset({"triton"})), "flex_attention", "a block mask"),
    (Machine("cuda", (8, 0)), "sdpa", "flash-attn is not installed; triton is not installed"),
    (Machine("cuda", (7, 5), FLASH), "sdpa", "CUDA 7.5"),
    (Machine("cuda", (7, 0), FLASH), "sdpa", "CUDA 7.0"),
    (Machine("mps"), "sdpa", "MPS"),
    (Machine("npu", None, frozenset({"torch_npu"})), "flash_attention_2", "no mask is needed"),
    (Machine("npu"), "sdpa", "torch_npu is not installed"),
    (Machine("cpu", None, FLASH), "sdpa", "CPU"),
]


def test_this_machine_has_the_capability_of_its_gpu_and_a_cpu_has_none(monkeypatch):
    """A guess at it would choose kernels that the GPU cannot run."""
    for has_gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        cuda, cpu = Machine.here("cuda:0"), Machine.here("cpu")
        assert (cuda.device, cuda.capability, cuda.modern) == ("cuda", (9, 0) if has_gpu else None, has_gpu)
        assert (cpu.device, cpu.capability, cpu.modern) == ("cpu", None, False)
        assert (Machine.here().device == "cuda") == has_gpu


@pytest.mark.parametrize(("machine", "name", "words"), MACHINES, ids=lambda value: getattr(value, "title", None))
def test_every_machine_gets_an_attention_that_runs_there(machine, name, words):
    """V100, T4, MPS, NPU and CPU are not locked out, and no one is told to install anything."""
    choice = choose_attention(transformers.LlamaConfig(), machine=machine)
    assert (choice.name, choice.dialect) == (name, "transformers")
    assert words in choice.reason
    assert "\n" not in str(choice)


def test_a_configuration_and_its_model_get_the_same():
    machine = Machine("cpu")
    assert choose_attention(tiny().config, machine=machine) == choose_attention(tiny(), machine=machine)


@pytest.mark.parametrize(
    ("wish", "machine", "words"),
    [
        ("flash_attention_2", Machine("cuda", (9, 0)), "flash-attn is not installed"),
        ("flash_attention_2", Machine("cuda", (7, 0), FLASH), "needs CUDA 8.0 and this is CUDA 7.0"),
        ("flash_attention_3", Machine("cuda", (8, 0), frozenset({"flash_attn_interface"})), "needs CUDA 9.0"),
        ("flex_attention", Machine("cpu", None, FLASH), "trains on CUDA 8.0 and this is CPU"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_with_the_way_out(wish, machine, words):
    """Replacing it silently would be another training than the one asked for."""
    config = transformers.LlamaConfig()
    config._attn_implementation = wish
    for given in ({"model": config}, {"model": transformers.LlamaConfig(), "attention": wish}):
        with pytest.raises(SettingsError, match=f"{wish}.* cannot run here: .*{words}.*leave attn_implementation out"):
            choose_attention(machine=machine, **given)


def test_a_wish_that_can_be_met_is_met():
    assert choose_attention(transformers.LlamaConfig(), attention="eager", machine=Machine("cpu")).name == "eager"
    modern = Machine("cuda", (9, 0), FLASH)
    assert choose_attention(transformers.LlamaConfig(), attention="sdpa", machine=modern).name == "sdpa"


@pytest.mark.parametrize(
    ("name", "implementation", "dialect"),
    [
        ("qwen2", "sdpa", "transformers"),
        ("mistral", "sdpa", "transformers"),
        ("gemma2", "eager", "transformers"),
        ("opt", "sdpa", "dense_mask"),
        ("qwen2_vl", "sdpa", "transformers"),
    ],
)
def test_what_is_chosen_keeps_samples_apart(name, implementation, dialect):
    """The choice is only worth something if the checks pass with it: windows, masks without positions, mRoPE."""
    if name == "gemma2":
        pytest.importorskip("transformers", minversion="5.23")  # which has no release for Python 3.10
    model = tiny_model(name)
    collator = collator_for(model, device="cpu", quiet=True)
    assert (model.config._attn_implementation, collator.dialect.name) == (implementation, dialect)
    report = verify_packing(model, collator, random_samples(128), attention=implementation, gradients=False)
    assert report.ok, str(report)


def test_the_plain_collator_would_leak_where_the_choice_brings_a_mask():
    """Otherwise the test above could pass whatever the dialect."""
    model = tiny_model("opt")
    report = verify_packing(model, PackCollator(), random_samples(128), attention="sdpa", gradients=False)
    assert "isolation" in {finding.check for finding in report.failures}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mamba2", "Mamba2ForCausalLM carries the state .* into the next"),
        ("qwen3_next", "causal-conv1d and flash-linear-attention not installed"),
        ("bamba", "causal-conv1d and mamba-ssm not installed"),
        ("lfm2", "pip install causal-conv1d and run on CUDA"),
        ("gpt_oss", "would replace its windows: use flash attention"),
        ("bloom", "its biases need a mask of rows"),
        ("bert", "attends in both directions"),
    ],
)
def test_a_model_that_would_leak_is_refused_by_name(name, words):
    """Each of these trains without a word, and wrongly, with packs and no kernels (docs/verify.md)."""
    with pytest.raises(SettingsError, match=f"{words}.*PackCollator\\(dialect='plain'\\)"):
        choose_attention(tiny_model(name), machine=Machine("cpu"))


def test_kernels_make_recurrent_models_possible():
    everything = Machine("cuda", (9, 0), FLASH | {"causal_conv1d", "fla", "mamba_ssm"})
    for name in ("qwen3_next", "bamba", "lfm2"):
        assert choose_attention(tiny_model(name), machine=everything).name == "flash_attention_2"
    with pytest.raises(SettingsError, match="not on this device"):
        choose_attention(tiny_model("bamba"), machine=Machine("cpu", None, everything.packages))


def test_positions_begin_behind_the_padding_where_the_model_wants_it():
    """RoBERTa learned that the first token is at 2."""
    modern = Machine("cuda", (9, 0), FLASH)
    assert choose_attention(transformers.RobertaConfig(is_decoder=True), machine=modern).position_start == 2
    assert choose_attention(transformers.LlamaConfig(), machine=modern).position_start == 0


def test_code_of_its_own_gets_a_mask():
    """Nothing is known of it: a mask of all pairs is the one thing that does not depend on positions."""

    class Own(transformers.LlamaForCausalLM):  # type: ignore[name-defined]
        pass

    Own.__module__ = "transformers_modules.someone.modeling"
    choice = choose_attention(Own(tiny_model("llama").config), machine=Machine("cpu"))
    assert choice.dialect == "dense_mask"
    assert "has custom code" in choice.reason


def test_the_choice_is_told_once_and_by_the_first_rank(capsys, monkeypatch):
    """512 ranks that say the same would hide all other lines."""
    attention._print.cache_clear()
    monkeypatch.setenv("RANK", "3")
    collator_for(tiny(), device="cpu")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    for _ in range(2):
        collator_for(tiny(), device="cpu")
    err = capsys.readouterr().err
    assert err.startswith("brimful: attention sdpa, batches as transformers: ")
    assert err.count("\n") == 1


def test_the_device_that_is_asked_for_counts_and_then_the_one_of_the_model(monkeypatch):
    asked = []
    monkeypatch.setattr(Machine, "here", lambda device: asked.append(device) or Machine("cpu"))
    monkeypatch.setattr(attention, "_accelerator_of", lambda model: "of the model")
    for device in ("cuda:1", None):
        choose_attention(transformers.LlamaConfig(), device=device)
    assert asked == ["cuda:1", "of the model"]


def test_a_model_is_switched_from_whatever_it_has():
    model = tiny()
    for asked in ("eager", "sdpa", "sdpa", "eager"):
        collator_for(model, device="cpu", attention=asked, quiet=True)
        assert model.config._attn_implementation == asked
    model.config._attn_implementation = TREE_ATTENTION
    choice = choose_attention(model)
    assert (choice.name, choice.dialect, choice.position_start) == (TREE_ATTENTION, "transformers_tree", 0)


def test_a_loss_that_a_model_takes_as_a_mean_is_the_sum_over_all_targets():
    """Of Qwen2-Audio, row by row: no token of a row predicts one of the next."""
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[4, 1, -100], [0, 2, 3]])
    due = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum") / 7
    for values in ({"labels": labels, "num_items_in_batch": 7}, {"labels": labels}, {"num_items_in_batch": 7}):
        found = attention._loss_as_asked(None, (), values, SimpleNamespace(logits=logits, loss=None)).loss
        if len(values) == 2:
            torch.testing.assert_close(found, due)
        else:
            assert found is None


@pytest.mark.parametrize("backend", ["npu", "mps", None])
def test_an_accelerator_of_another_kind_is_found(backend, monkeypatch):
    """``torch.npu`` is of a package of its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("npu", "mps"):
        module = SimpleNamespace(is_available=lambda name=name: name == backend)
        monkeypatch.setattr(torch, name, module, raising=False)
    if backend == "npu":  # which torch alone does not know as a device
        monkeypatch.setattr(torch, "device", lambda name: SimpleNamespace(type=name))
    assert attention._accelerator().type == (backend or "cpu")


def test_the_device_of_a_model_counts_if_it_is_on_one():
    """On the CPU its trainer may still move it; a configuration has none."""

    def model_on(kind):
        return SimpleNamespace(
            parameters=lambda: iter([SimpleNamespace(device=SimpleNamespace(type=kind))] * bool(kind))
        )

    found = [attention._accelerator_of(model_on(kind)) for kind in ("cuda", "npu", "cpu", "meta", None)]
    assert [device and device.type for device in found] == ["cuda", "npu", None, None, None]
    assert attention._accelerator_of(transformers.LlamaConfig()) is None


def test_options_reach_the_collator():
    collator = collator_for(tiny(), device="cpu", pad_to=32, pad_token_id=7, quiet=True)
    assert (collator.padding.to, collator.pad_token_id) == (32, 7)
    with pytest.raises(SettingsError, match="vocabulary"):
        collator_for(tiny(), device="cpu", pad_token_id=5000, quiet=True)
