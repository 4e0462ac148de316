"""Settings of trainers that are wrong with packs: refused by name, with the nearest setting that works."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brimful.errors import SettingsError

__all__ = ["REFUSALS", "Refusal", "check_arguments"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One wrong setting.

    Attributes:
        setting: the setting's text in messages.
        wrong: function of ``(arguments, collator)``, true if the arguments have the setting.
        reason: the consequence.
        way_out: the nearest setting that works.
        trainers: ``transformers`` (and trainers built on it), or only ``trl``.
    """

    setting: str
    wrong: Callable[[Any, Any], bool]
    reason: str
    way_out: str
    trainers: tuple[str, ...] = ("transformers", "trl")


def _has(name: str, *values: Any) -> Callable[[Any, Any], bool]:
    """Return a test whether an attribute has one of these values; without values, any true value."""
    return lambda args, collator: getattr(args, name, None) in values if values else bool(getattr(args, name, None))


def _of_trl(name: str, reason: str, way_out: str) -> Refusal:
    """Return the refusal of a switch that only TRL has."""
    return Refusal(f"{name}=True", _has(name, True), reason, way_out, ("trl",))


def _of_trl_with(name: str, reason: str, way_out: str) -> Refusal:
    """Return the refusal of any value of a setting that only TRL has."""
    return Refusal(name, _has(name), reason, way_out, ("trl",))


def _accelerator_has(name: str) -> Callable[[Any, Any], bool]:
    return lambda args, collator: bool(getattr(getattr(args, "accelerator_config", None), name, False))


def _compiles_ragged_rows(args: Any, collator: Any) -> bool:
    return bool(getattr(args, "torch_compile", False)) and getattr(collator, "pad_to", 0) is None


REFUSALS = (
    _of_trl(
        "packing",
        "TRL would pack packs again and cut them at max_length",
        "packing=False; the packs already exist",
    ),
    _of_trl(
        "eval_packing",
        "TRL would pack packs again",
        "leave eval_packing out, and give packs, or one_by_one(packs), as eval_dataset",
    ),
    _of_trl(
        "padding_free",
        "TRL then takes no data_collator",
        "padding_free=False; PackCollator flattens the batch",
    ),
    _of_trl(
        "assistant_only_loss",
        "TRL looks for conversations, and packs hold tokens",
        "leave it out; only answers of packed samples are targets, unless train_on said otherwise when packing",
    ),
    _of_trl(
        "completion_only_loss",
        "TRL looks for prompts and completions, and packs hold tokens",
        "leave it out; prompts of packed samples are already excluded from the targets",
    ),
    _of_trl_with(
        "eos_token",
        "packs hold tokens from the unchanged tokenizer",
        "leave it out; set tokenizer.eos_token before packing",
    ),
    _of_trl_with(
        "chat_template_path",
        "packs hold tokens from the unchanged tokenizer",
        "leave it out; set tokenizer.chat_template before packing",
    ),
    _of_trl_with(
        "pad_to_multiple_of",
        "TRL's own collator pads, and packs need PackCollator",
        "PackCollator(padding=Padding(multiple_of=…))",
    ),
    Refusal(
        "truncation_mode='keep_end'",
        _has("truncation_mode", "keep_end"),
        "samples are cut at their end when they are packed",
        "leave it out",
        ("trl",),
    ),
    Refusal(
        "neftune_noise_alpha",
        _has("neftune_noise_alpha"),
        "the noise is scaled by the length of the row, so k samples in a row get 1/sqrt(k) of it",
        "leave it out, or train without packing",
    ),
    Refusal(
        "torch_compile=True without pad_to",
        _compiles_ragged_rows,
        "rows of different lengths are compiled again and again",
        "PackCollator(padding=Padding(to=capacity, max_seqlen=capacity))",
    ),
    Refusal(
        "train_sampling_strategy='group_by_length'",
        lambda args, collator: (
            getattr(args, "train_sampling_strategy", None) == "group_by_length"
            or bool(getattr(args, "group_by_length", False))
        ),
        "packs have one length, and reading all of them for their lengths takes an epoch",
        "leave it out",
    ),
    Refusal(
        "accelerator_config.dispatch_batches=True",
        _accelerator_has("dispatch_batches"),
        "rank 0 cuts its batch by rows, and a packed batch is one row",
        "dispatch_batches=False; every rank reads its own packs",
    ),
    Refusal(
        "accelerator_config.split_batches=True",
        _accelerator_has("split_batches"),
        "a batch is cut by rows, and a packed batch is one row",
        "split_batches=False",
    ),
    Refusal(
        "average_tokens_across_devices=False",
        _has("average_tokens_across_devices", False),
        "each rank divides by its own targets, so a target weighs more on a rank with few targets",
        "average_tokens_across_devices=True, the default",
    ),
)
"""Refusals for ``TrainingArguments`` and ``SFTConfig``; listed with refusals of models in ``docs/trainers/README.md``."""


def check_arguments(args: Any, collator: Any = None, *, trainer: str = "transformers") -> None:
    """Refuse settings that would train packs wrongly without an error.

    Args:
        args: ``TrainingArguments`` or ``SFTConfig``.
        collator: the trainer's collator.
        trainer: ``transformers`` or ``trl``.

    Raises:
        SettingsError: names the setting, the consequence, and the way out.

    >>> from types import SimpleNamespace
    >>> check_arguments(SimpleNamespace(neftune_noise_alpha=None))
    >>> check_arguments(SimpleNamespace(packing=True), trainer="trl")
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: packing=True does not go with packs: TRL would pack packs again and cut them at max_length. Use packing=False; the packs already exist
    """
    for refusal in REFUSALS:
        if trainer in refusal.trainers and refusal.wrong(args, collator):
            way_out = refusal.way_out if refusal.way_out.startswith("leave") else f"use {refusal.way_out}"
            raise SettingsError(
                f"{refusal.setting} does not go with packs: {refusal.reason}. {way_out[0].upper()}{way_out[1:]}"
            )
