"""Plans of a source for each epoch: measured once, planned once, and stored by the fingerprint of their inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from brimful.cache import exclusive
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.errors import BrimfulError, SettingsError
from brimful.fingerprint import fingerprint_array, fingerprint_of
from brimful.measure import LengthCache, LengthTable, measure_lengths
from brimful.messages import setting
from brimful.plan import Plan, PlanSettings, plan_with
from brimful.plan.policies.budgets import DERIVED
from brimful.progress import Progress
from brimful.shared.arguments import Arguments, arguments_of
from brimful.shared.builder import BuiltPlan
from brimful.shared.domains import Domains, group_of_packs, save_groups
from brimful.sources.open import open_source
from brimful.sources.source import Source
from brimful.typing import AnyIntArray, Fingerprint

_VERSION = 1
"""Version in the name of every plan: plans that another version of brimful might make differently are not found."""

_LOSS_TOKENS = "loss_tokens"


class SourcePlans:
    """Function from an epoch to its plan; only the builder calls it. Every rank reads ``arguments``.

    ::

        plans/<fingerprint>.arrow           the plan: lengths, settings, epoch and groups decide the name
        plans/<fingerprint>.domains.arrow   the domain of each pack, if domains were given

    An existing plan is not made again by a later job; a job that runs at the same time waits for it.
    """

    def __init__(
        self,
        source: Any,
        encoder: Any,
        settings: PlanSettings,
        directory: Path,
        *,
        groups: AnyIntArray | Sequence[int] | None,
        domains: Sequence[str] | None,
        lengths: LengthTable | LengthCache | None,
        measure_options: Mapping[str, Any],
    ) -> None:
        self._source, self._encoder, self._settings, self._directory = source, encoder, settings, directory
        self._groups, self._domain_names = groups, domains
        self._table = lengths if isinstance(lengths, LengthTable) else None
        self._cache = lengths if isinstance(lengths, LengthCache) else None
        self._domains: Domains | None = None
        self._measure_options = measure_options

    @cached_property
    def samples(self) -> tuple[Source, Encoder]:
        """Source and encoder, opened."""
        source = open_source(self._source, cache_dir=self._measure_options.get("cache_dir"))
        return source, as_encoder(source, self._encoder)

    @property
    def arguments(self) -> Arguments:
        """Arguments that all ranks must share; empty for plans of lengths without samples."""
        cache = self._measure_options.get("cache_dir")
        return {} if self._source is None else arguments_of(*self.samples, self._settings, cache)

    def __call__(self, epoch: int, progress: Progress) -> BuiltPlan:
        table = self._lengths(progress)
        settings = replace(self._settings, epoch=epoch)
        identity = self._identity(table)
        name = fingerprint_of([identity, epoch])
        plan_path, groups_path = f"plans/{name}.arrow", f"plans/{name}.domains.arrow"
        path = self._directory / plan_path
        with exclusive(path), progress.stage("plan", total=1, unit="plan"):
            plan = _kept(path, settings)
            if plan is None:
                plan_with(table, settings, groups=self._groups).save(path)
                plan = Plan.open(path)
            if self._domains is not None and not os.path.exists(self._directory / groups_path):
                save_groups(self._directory / groups_path, group_of_packs(plan, self._domains), self._domains.names)
            progress.advance(1)
        files = (plan_path,) if self._domains is None else (plan_path, groups_path)
        return BuiltPlan(plan, identity, files, self.arguments)

    def _lengths(self, progress: Progress) -> LengthTable:
        if self._table is None:
            source, encoder = self.samples
            budgets = self._settings.budgets or {}
            for name in budgets:
                if name not in (*DERIVED, _LOSS_TOKENS, *encoder.budgets):
                    known_budgets = ", ".join((_LOSS_TOKENS, *DERIVED, *encoder.budgets))
                    raise SettingsError(
                        f"{setting('budgets')}: {name!r} is unknown: packing can measure {known_budgets}"
                    )
            measurement = ("tokens", _LOSS_TOKENS) if _LOSS_TOKENS in budgets else ("tokens",)
            measure = measure_lengths if self._cache is None else self._cache.lengths
            self._table = measure(source, encoder, budgets=measurement, progress=progress, **self._measure_options)
        if self._domain_names is not None and self._domains is None:
            self._domains = Domains.of(self._domain_names, len(self._table))
        return self._table

    def _identity(self, table: LengthTable) -> Fingerprint:
        """Return the fingerprint of everything that decides the plans, except the epoch."""
        settings = replace(self._settings, epoch=0)
        parts = {
            "version": _VERSION,
            "lengths": table.fingerprint,
            "targets": None if table.targets is None else fingerprint_array(table.targets.counts),
            "settings": settings.as_dict(),
            "time_limit": settings.time_limit,
            "groups": None if self._groups is None else fingerprint_array(np.asarray(self._groups)),
            "domains": None if self._domains is None else self._domains.fingerprint,
        }
        return fingerprint_of(parts)


def _kept(path: Path, settings: PlanSettings) -> Plan | None:
    """Return the stored plan if it is undamaged and has these settings, otherwise None."""
    if not path.exists():
        return None
    try:
        plan = Plan.open(path)
        plan.check_fingerprint()
    except BrimfulError:
        return None  # damaged: it is made again
    return plan if plan.settings.as_dict() == settings.as_dict() else None
