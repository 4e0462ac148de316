"""Calls of a job's modules, which a probe makes again with other tokens."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from brimful.base.typing import IGNORE_INDEX
from brimful.doctor.batch.words import Role, role_of
from brimful.doctor.probing.recorder import layers_of

_LOGITS_TO_KEEP = "logits_to_keep"
"""Argument of models of Transformers: number or places of the tokens that get logits; 0 for all."""


class Call:
    """Call that a probe can make again with other tokens.

    Attributes:
        module: the module that is called, or all modules of this rank.
        arguments: of the call, by name.
        layers: of the module, by name.
        stage, stages: number of this rank's stage of a pipeline, from 1, and of all; 0 without one.
        part, parts: number of this rank's part of a row between layers, and of all parts.
    """

    module: torch.nn.Module
    arguments: Mapping[str, Any]
    layers: Mapping[str, torch.nn.Module]
    stage = stages = part = 0
    parts = 1

    def again(self, batch: Mapping[str, Any] | None, **options: Any) -> Any:
        """Run it with a batch; return its output."""
        raise NotImplementedError

    def accepts(self, name: str) -> bool:
        """Return true if the module takes this argument and the call does not have it."""
        return False


class ModuleCall(Call):
    """Call of a module, with its arguments by name.

    Args:
        module: the module that is called.
        args, kwargs: its arguments.
        tokens: name of the argument that holds the tokens, if it is an unusual one.

    Attributes:
        arguments: by name; the tokens as ``input_ids`` if their name is an unusual one.
        kept: columns of tokens that get logits: all, unless the trainer keeps some only.
    """

    def __init__(
        self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tokens: str | None = None
    ) -> None:
        # A compiled module is run as it was written: hooks would be compiled into it.
        self.module = getattr(module, "_orig_mod", module)
        self._names = _argument_names(self.module)
        names = [*self._names, *(f"argument {index}" for index in range(len(args)))]
        self._positional = names[: len(args)]
        arguments = {**dict(zip(self._positional, args, strict=True)), **kwargs}
        self._keys = {name: "input_ids" if name == tokens else name for name in arguments}
        self.arguments = {self._keys[name]: value for name, value in arguments.items()}
        self.layers = layers_of(self.module)
        keep = self.arguments.get(_LOGITS_TO_KEEP)
        self.kept: Any = slice(-keep, None) if isinstance(keep, int) else slice(None)
        if isinstance(keep, torch.Tensor):
            self.kept = keep.cpu()

    def batch(self, loader_batch: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the arguments as a batch, with words of the loader's batch that the module does
        not get.
        """
        roles = {role_of(name) for name, value in self.arguments.items() if value is not None}
        words = {
            name: value
            for name, value in (loader_batch or {}).items()
            if role_of(name) not in {None, Role.IDS, *roles}
        }
        return _with_whole_labels({**self.arguments, **words}, self.kept)

    def accepts(self, name: str) -> bool:
        return name in self._names and name not in self.arguments

    def again(self, batch: Mapping[str, Any] | None, **options: Any) -> Any:
        """Call the module with copies of the arguments in a batch, for the logits of all tokens."""
        assert batch is not None
        values = {
            name: None if self.arguments[key] is None else copied(batch[key])
            for name, key in self._keys.items()
        }
        if values.get(_LOGITS_TO_KEEP) is not None:
            values[_LOGITS_TO_KEEP] = 0
        args = [values.pop(name) for name in self._positional]
        return self.module(*args, **values, **options)


def _argument_names(module: Any) -> list[str]:
    """Return the names of a forward's arguments; of a wrapper, the ones of the module in it."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]
    if not names and hasattr(module, "get_base_model"):
        return _argument_names(module.get_base_model())
    inner = getattr(module, "module", None)
    return names if names or inner is None else _argument_names(inner)


def _with_whole_labels(batch: dict[str, Any], columns: Any) -> dict[str, Any]:
    """Return a batch with a label for each token, where a trainer keeps some of the logits only.

    ::

        input_ids       a b c d e f       labels   - - c - - f
        logits_to_keep  0 1 0 0 1 1       kept     - c f: each but the first is predicted by one of
                                                   the kept logits, the last of which predicts nothing
    """
    ids, labels = batch.get("input_ids"), batch.get("labels")
    if not isinstance(ids, torch.Tensor) or not isinstance(labels, torch.Tensor):
        return batch
    if ids.ndim != 2 or labels.shape == ids.shape or labels.shape[:1] != ids.shape[:1]:
        return batch
    places = torch.arange(ids.shape[-1])[columns]
    if labels.shape[-1] != len(places):
        return batch
    labels_of_all = torch.full_like(ids, IGNORE_INDEX)
    labels_of_all[:, places[:-1] + 1] = labels[:, 1:]
    return {**batch, "labels": labels_of_all}


def copied(value: Any) -> Any:
    """Copy tensors and containers, which a forward may write into."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if type(value) is list else value
