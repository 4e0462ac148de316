"""Options that say how the model is trained, for reports and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from brimful.cli.command import grouped
from brimful.errors import SettingsError
from brimful.report.facts import Run
from brimful.report.models import DEFAULT_MODEL, MODELS, cost_model_from_config, cost_model_named

__all__ = ["make_run", "run_options"]

run_options = grouped(
    "Training run",
    click.option(
        "--world-size",
        "--dp-world-size",
        "dp_world_size",
        type=int,
        default=1,
        show_default=True,
        metavar="RANKS",
        help="Data-parallel ranks.",
    ),
    click.option(
        "--micro-batch-size",
        "--per-device-train-batch-size",
        "micro_batch_size",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Samples of one forward without packing.",
    ),
    click.option(
        "--packs-per-micro-batch",
        type=int,
        metavar="N",
        help="Packs of one forward with packing (default: --micro-batch-size).",
    ),
    click.option(
        "--gradient-accumulation-steps",
        type=int,
        default=1,
        show_default=True,
        metavar="N",
        help="Forwards of one step on one rank.",
    ),
    click.option("--learning-rate", type=float, metavar="LR", help="Of the run without packing."),
    click.option("--warmup-steps", type=int, metavar="N", help="Of the run without packing."),
    click.option("--model-type", metavar="NAME", help=f"What costs are those of: {', '.join(MODELS)}."),
    click.option("--model-config", metavar="FILE", help="The config.json of your model, for its costs."),
)


def make_run(options: Mapping[str, Any]) -> Run:
    """The run that the options describe.

    Raises:
        SettingsError: a count below 1, or two models.
    """
    for name, least in (
        ("dp_world_size", 1),
        ("micro_batch_size", 1),
        ("packs_per_micro_batch", 1),
        ("gradient_accumulation_steps", 1),
        ("warmup_steps", 0),
    ):
        value = options[name]
        if value is not None and value < least:
            flag = "--world-size" if name == "dp_world_size" else f"--{name.replace('_', '-')}"
            raise SettingsError(f"{flag} must be at least {least} and is {value}")
    named, path = options["model_type"], options["model_config"]
    if named is not None and path is not None:
        raise SettingsError(f"--model-type {named} and --model-config {path} are two models: give one of them")
    return Run(
        dp_world_size=options["dp_world_size"],
        micro_batch_size=options["micro_batch_size"],
        gradient_accumulation_steps=options["gradient_accumulation_steps"],
        packs_per_micro_batch=options["packs_per_micro_batch"],
        learning_rate=options["learning_rate"],
        warmup_steps=options["warmup_steps"],
        cost_model=cost_model_from_config(path) if path is not None else cost_model_named(named or DEFAULT_MODEL),
        model=path or named or DEFAULT_MODEL,
    )
