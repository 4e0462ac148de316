"""Settings of trainers that are wrong with packs: refused by name, with the nearest setting that
works.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brimful.errors import SettingsError

__all__ = ["REFUSALS", "Refusal", "check_arguments"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One wrong setting.

    Attributes:
        name: of an attribute of the arguments, also of one inside another; or words for ``wrong``.
        value: the wrong value; None if every true value is wrong.
        reason: the consequence.
        hint: the nearest setting that works.
        trainer: the only trainer that it is wrong for; empty for Transformers and all trainers
            built on it.
        wrong: function of ``(arguments, collator)``, true if they are wrong; None to compare
            values.
    """

    name: str
    value: Any
    reason: str
    hint: str
    trainer: str = ""
    wrong: Callable[[Any, Any], bool] | None = None

    @property
    def setting(self) -> str:
        """The setting in messages."""
        return self.name if self.value is None else f"{self.name}={self.value!r}"

    def refuses(self, args: Any, collator: Any) -> bool:
        """Return true if the arguments of a trainer, or its collator, are wrong."""
        if self.wrong is not None:
            return self.wrong(args, collator)
        value = args
        for attribute in self.name.split("."):
            value = getattr(value, attribute, None)
        return bool(value) if self.value is None else bool(value == self.value)


REFUSALS = (
    Refusal(
        "packing",
        True,
        "TRL would pack packs again and cut them at max_length",
        "packing=False; the packs already exist",
        "trl",
    ),
    Refusal(
        "eval_packing",
        True,
        "TRL would pack packs again",
        "leave eval_packing out, and give packs, or one_by_one(packs), as eval_dataset",
        "trl",
    ),
    Refusal(
        "padding_free",
        True,
        "TRL then takes no data_collator",
        "padding_free=False; PackCollator flattens the batch",
        "trl",
    ),
    Refusal(
        "assistant_only_loss",
        True,
        "TRL looks for conversations, and packs hold tokens",
        "leave it out; only answers of packed samples are targets, unless train_on said otherwise "
        "when packing",
        "trl",
    ),
    Refusal(
        "completion_only_loss",
        True,
        "TRL looks for prompts and completions, and packs hold tokens",
        "leave it out; prompts of packed samples are already excluded from the targets",
        "trl",
    ),
    Refusal(
        "eos_token",
        None,
        "packs hold tokens from the unchanged tokenizer",
        "leave it out; set tokenizer.eos_token before packing",
        "trl",
    ),
    Refusal(
        "chat_template_path",
        None,
        "packs hold tokens from the unchanged tokenizer",
        "leave it out; set tokenizer.chat_template before packing",
        "trl",
    ),
    Refusal(
        "pad_to_multiple_of",
        None,
        "TRL's own collator pads, and packs need PackCollator",
        "PackCollator(padding=Padding(multiple_of=…))",
        "trl",
    ),
    Refusal(
        "truncation_mode",
        "keep_end",
        "samples are cut at their end when they are packed",
        "leave it out",
        "trl",
    ),
    Refusal(
        "neftune_noise_alpha",
        None,
        "the noise is scaled by the length of the row, so k samples in a row get 1/sqrt(k) of it",
        "leave it out, or train without packing",
    ),
    Refusal(
        "torch_compile=True without pad_to",
        None,
        "rows of different lengths are compiled again and again",
        "PackCollator(padding=Padding(to=capacity, max_seqlen=capacity))",
        wrong=lambda args, collator: (
            bool(getattr(args, "torch_compile", False))
            and getattr(getattr(collator, "padding", None), "to", 0) is None
        ),
    ),
    Refusal(
        "train_sampling_strategy",
        "group_by_length",
        "packs have one length, and reading all of them for their lengths takes an epoch",
        "leave it out",
        wrong=lambda args, collator: (
            getattr(args, "train_sampling_strategy", None) == "group_by_length"
            or bool(getattr(args, "group_by_length", False))
        ),
    ),
    Refusal(
        "accelerator_config.dispatch_batches",
        True,
        "rank 0 cuts its batch by rows, and a packed batch is one row",
        "dispatch_batches=False; every rank reads its own packs",
    ),
    Refusal(
        "accelerator_config.split_batches",
        True,
        "a batch is cut by rows, and a packed batch is one row",
        "split_batches=False",
    ),
    Refusal(
        "average_tokens_across_devices",
        False,
        "each rank divides by its own targets, so a target weighs more on a rank with few targets",
        "average_tokens_across_devices=True, the default",
    ),
)
"""Refusals for ``TrainingArguments`` and ``SFTConfig``; listed with refusals of models in
``docs/trainers/README.md``.
"""


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
        if refusal.trainer in ("", trainer) and refusal.refuses(args, collator):
            hint = refusal.hint if refusal.hint.startswith("leave") else f"use {refusal.hint}"
            raise SettingsError(
                f"{refusal.setting} does not go with packs: {refusal.reason}. "
                f"{hint[0].upper()}{hint[1:]}"
            )
