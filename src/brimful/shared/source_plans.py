"""Plans of a source for each epoch: measured once, planned once, and stored by the fingerprint of their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.cache import exclusive
from brimful.base.fingerprint import fingerprint_array, fingerprint_of
from brimful.base.progress import Progress
from brimful.base.typing import AnyIntArray
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.errors import BrimfulError
from brimful.measure import LengthCache, LengthTable, measure_lengths
from brimful.plan import Plan, PlanSettings, plan_with
from brimful.plan.policies.budgets import measured_budgets
from brimful.shared.domains import Domains, group_of_packs, save_groups
from brimful.shared.epoch_plans import BuiltPlan
from brimful.shared.equal_arguments import Arguments, arguments_of
from brimful.sources.opening import open_source
from brimful.sources.source import Source

_VERSION = 1
"""Version in the name of every plan: plans that another version of brimful might make differently are not found."""


@dataclass(eq=False)
class SourcePlans:
    """Function from an epoch to its plan; only the builder calls it. Every rank reads ``arguments``.

    ::

        plans/<fingerprint>.arrow           the plan: lengths, settings, epoch and groups decide the name
        plans/<fingerprint>.domains.arrow   the domain of each pack, if domains were given

    An existing plan is not made again by a later job; a job that runs at the same time waits for it.
    """

    source: Any
    encoder: Any
    settings: PlanSettings
    directory: Path
    groups: AnyIntArray | Sequence[int] | None
    domains: Domains | Sequence[str] | None
    lengths: LengthTable | LengthCache | None
    measure_options: Mapping[str, Any]

    @cached_property
    def samples(self) -> tuple[Source, Encoder]:
        """Source and encoder, opened."""
        source = open_source(self.source, cache_dir=self.measure_options["cache_dir"])
        return source, as_encoder(source, self.encoder)

    @property
    def arguments(self) -> Arguments:
        """Arguments that all ranks must share; empty for plans of lengths without samples."""
        cache = self.measure_options["cache_dir"]
        return {} if self.source is None else arguments_of(*self.samples, self.settings, cache)

    def __call__(self, epoch: int, progress: Progress) -> BuiltPlan:
        if not isinstance(self.lengths, LengthTable):
            self.lengths = self._measure(progress)
        table, domains = self.lengths, self.domains
        if domains is not None and not isinstance(domains, Domains):
            self.domains = domains = Domains.of(domains, len(table))
        # Everything that decides the plans, except the epoch.
        identity = fingerprint_of(
            {
                "version": _VERSION,
                "lengths": table.fingerprint,
                "targets": None if table.targets is None else fingerprint_array(table.targets.counts),
                "settings": self.settings.as_dict(),
                "time_limit": self.settings.time_limit,
                "groups": None if self.groups is None else fingerprint_array(np.asarray(self.groups)),
                "domains": None if domains is None else domains.fingerprint,
            }
        )
        settings = replace(self.settings, epoch=epoch)
        name = fingerprint_of([identity, epoch])
        files = (f"plans/{name}.arrow", f"plans/{name}.domains.arrow")
        path, groups_path = (self.directory / file for file in files)
        with exclusive(path), progress.stage("plan", total=1, unit="plan"):
            plan = _kept(path, settings)
            if plan is None:
                plan_with(table, settings, groups=self.groups).save(path)
                plan = Plan.open(path)
            if domains is not None and not groups_path.exists():
                save_groups(groups_path, group_of_packs(plan, domains), domains.names)
            progress.advance(1)
        return BuiltPlan(plan, identity, files[:1] if domains is None else files, self.arguments)

    def _measure(self, progress: Progress) -> LengthTable:
        source, encoder = self.samples
        budgets = measured_budgets(self.settings.budgets or (), encoder.budgets)
        measure = self.lengths.lengths if isinstance(self.lengths, LengthCache) else measure_lengths
        return measure(source, encoder, budgets=budgets, progress=progress, **self.measure_options)


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
