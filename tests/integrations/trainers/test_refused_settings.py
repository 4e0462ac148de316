"""Every setting that is wrong with packs is refused by its name, with the way out, and stands on the page."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from brimful import PackCollator
from brimful.errors import SettingsError
from brimful.integrations.trainers.refused_settings import REFUSALS, check_arguments

PAGE = (Path(__file__).parents[3] / "docs" / "trainers" / "README.md").read_text(encoding="utf-8")

WRONG = {
    "packing=True": {"packing": True},
    "eval_packing=True": {"eval_packing": True},
    "padding_free=True": {"padding_free": True},
    "assistant_only_loss=True": {"assistant_only_loss": True},
    "completion_only_loss=True": {"completion_only_loss": True},
    "eos_token": {"eos_token": "<end>"},
    "chat_template_path": {"chat_template_path": "other.jinja"},
    "pad_to_multiple_of": {"pad_to_multiple_of": 8},
    "truncation_mode='keep_end'": {"truncation_mode": "keep_end"},
    "neftune_noise_alpha": {"neftune_noise_alpha": 5.0},
    "torch_compile=True without pad_to": {"torch_compile": True},
    "train_sampling_strategy='group_by_length'": {"train_sampling_strategy": "group_by_length"},
    "accelerator_config.dispatch_batches=True": {"accelerator_config": SimpleNamespace(dispatch_batches=True)},
    "accelerator_config.split_batches=True": {"accelerator_config": SimpleNamespace(split_batches=True)},
    "average_tokens_across_devices=False": {"average_tokens_across_devices": False},
}


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.setting)
def test_each_is_refused_by_name_and_stands_on_the_page(refusal):
    wrong = SimpleNamespace(**WRONG[refusal.setting])  # type: ignore[arg-type]
    with pytest.raises(SettingsError) as raised:
        check_arguments(wrong, PackCollator(), trainer=refusal.trainer or "transformers")
    message = str(raised.value)
    assert message.startswith(f"{refusal.setting} does not go with packs: ")
    assert "\n" not in message
    assert f"`{refusal.setting}`" in PAGE
    assert refusal.reason in message
    assert refusal.hint[1:] in message


def test_right_settings_pass():
    right = SimpleNamespace(packing=False, torch_compile=True, average_tokens_across_devices=True)
    check_arguments(right, PackCollator(pad_to=8), trainer="trl")


def test_what_only_trl_has_is_no_matter_elsewhere():
    check_arguments(SimpleNamespace(packing=True))
