"""Options of a training run, for reports and comparisons."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from brimful.cli.command import grouped, value_option
from brimful.errors import SettingsError
from brimful.report.analysis.training_run import (
    DEFAULT_MODEL,
    MODELS,
    TrainingRun,
    cost_model_from_config,
    cost_model_named,
)

training_options = grouped(
    "Training run",
    value_option("--world-size", "RANKS", "Data-parallel ranks.", "--dp-world-size", "dp_world_size", default=1),
    value_option(
        "--micro-batch-size",
        "N",
        "Samples per forward pass without packing.",
        *("--per-device-train-batch-size", "micro_batch_size"),
        default=1,
    ),
    value_option(
        "--packs-per-micro-batch", "N", "Packs per forward pass with packing (default: --micro-batch-size).", type=int
    ),
    value_option("--gradient-accumulation-steps", "N", "Forward passes per step on one rank.", default=1),
    value_option("--learning-rate", "LR", "Learning rate without packing.", type=float),
    value_option("--warmup-steps", "N", "Warmup steps without packing.", type=int),
    value_option("--model-type", "NAME", f"Model whose costs are used: {', '.join(MODELS)}."),
    value_option("--model-config", "FILE", "The config.json of your model, for its costs."),
)


def make_run(options: Mapping[str, Any]) -> TrainingRun:
    """Return the run that the options describe.

    Raises:
        SettingsError: an impossible run, or two models.
    """
    name, path = options["model_type"], options["model_config"]
    if name is not None and path is not None:
        raise SettingsError(f"--model-type {name} and --model-config {path} are two models: give one of them")
    return TrainingRun(
        **{setting.name: options[setting.name] for setting in fields(TrainingRun) if setting.name in options},
        cost_model=cost_model_from_config(path) if path is not None else cost_model_named(name or DEFAULT_MODEL),
        model=path or name or DEFAULT_MODEL,
    )
