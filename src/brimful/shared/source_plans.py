"""Plans of a source for each epoch: measured once, planned once, and stored by the fingerprint of
their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.fingerprint import fingerprint_array, fingerprint_of
from brimful.base.locks import exclusive
from brimful.base.progress import Progress
from brimful.base.tables import Ragged, open_table, write_table
from brimful.base.typing import Fingerprint, Int32Array, Int64Array, IntArrayLike
from brimful.base.wording import setting
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.errors import BrimfulError, SettingsError
from brimful.measure import LengthCache, LengthTable, measure_lengths
from brimful.measure.measure_settings import SampleSettings
from brimful.plan import Plan, PlanSettings, plan_with
from brimful.plan.policies.budgets import measured_budgets
from brimful.shared.epoch_plans import BuiltPlan
from brimful.shared.ranks import Arguments, arguments_of
from brimful.sources.opening import open_source
from brimful.sources.source import Source

_KIND = "domains of packs"
_CELLS = 1 << 22
"""Packs × domains that are summed at a time: bounds the memory for a plan of any size."""


@dataclass(frozen=True, eq=False)
class PackMetadata:
    """Facts about every pack, identical on every rank; views of the plan where possible.

    Attributes:
        indices: sample ids of each pack, ``int[num_segments]`` in each row; ``indices.row(7)``.
        group: ``int32[num_packs]``, number of the domain with the largest number of tokens in the
            pack; the lowest number on a tie.
        group_domains: name of each domain, indexed by its number.
    """

    plan: Plan
    group: Int32Array
    group_domains: tuple[str, ...]

    @property
    def indices(self) -> Ragged:
        """Sample ids of each pack, in order."""
        return Ragged(self.plan.sample_ids, self.plan.offsets)

    @property
    def lengths(self) -> Int64Array:
        """``int64[num_packs]``: tokens of each pack."""
        return self.plan.pack_tokens

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of plan, groups and names: equal on all ranks."""
        return fingerprint_of(
            [self.plan.fingerprint, fingerprint_array(self.group), list(self.group_domains)]
        )

    def __len__(self) -> int:
        return self.plan.num_packs

    def __repr__(self) -> str:
        return (
            f"PackMetadata({self.plan.num_packs:,} packs, domains {', '.join(self.group_domains)})"
        )


@dataclass(frozen=True)
class Domains:
    """Domain of each sample: numbers, and the names in alphabetical order."""

    codes: Int32Array
    names: tuple[str, ...]

    @classmethod
    def of(cls, domains: Sequence[str], num_samples: int) -> Domains:
        """Number the names.

        Raises:
            SettingsError: the number of names differs from the number of samples.
        """
        if len(domains) != num_samples:
            raise SettingsError(
                f"{setting('domains')} has {len(domains):,} names for {num_samples:,} samples: "
                "give one for each"
            )
        names, codes = np.unique(np.array(domains, dtype=object), return_inverse=True)
        return cls(codes.astype(np.int32), tuple(names.tolist()))

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of numbers and names."""
        return fingerprint_of([fingerprint_array(self.codes), list(self.names)])


def group_of_packs(plan: Plan, domains: Domains) -> Int32Array:
    """Return the domain with the largest number of tokens in each pack, ``int32[num_packs]``; the
    lowest on a tie.

    >>> from brimful import plan_packs
    >>> plan = plan_packs([3, 2, 2, 4], capacity=7, algorithm="next_fit")
    >>> group_of_packs(plan, Domains.of(["web", "code", "code", "web"], 4)).tolist()
    [0, 1]
    """
    num_domains = len(domains.names)
    group = np.zeros(plan.num_packs, dtype=np.int32)
    packs_at_once = max(1, _CELLS // max(1, num_domains))
    for first in range(0, plan.num_packs, packs_at_once):
        offsets = plan.offsets[first : first + packs_at_once + 1]
        rows = slice(int(offsets[0]), int(offsets[-1]))
        num_packs = len(offsets) - 1
        packs = np.repeat(np.arange(num_packs), np.diff(offsets))
        cells = packs * num_domains + domains.codes[plan.sample_ids[rows]]
        tokens = np.bincount(cells, weights=plan.lengths[rows], minlength=num_packs * num_domains)
        group[first : first + num_packs] = tokens.reshape(num_packs, num_domains).argmax(axis=1)
    return group


def save_groups(path: Path, group: Int32Array, names: Sequence[str]) -> None:
    """Write groups and names as one file, atomically."""
    write_table(path, {"group": group}, {"kind": _KIND, "names": list(names)})


def open_metadata(plan: Plan, path: Path | None = None) -> PackMetadata:
    """Map the groups of a plan; without a file all packs belong to one domain.

    Raises:
        CorruptFileError: the file is damaged.
    """
    if path is None:
        return PackMetadata(
            plan, np.broadcast_to(np.zeros(1, dtype=np.int32), (plan.num_packs,)), ("all",)
        )
    table = open_table(path)
    names: list[Any] = table.description["names"]
    return PackMetadata(plan, table.flat("group"), tuple(map(str, names)))


_VERSION = 1
"""Version in the name of every plan: plans that another version of brimful might make differently
are not found.
"""


@dataclass(eq=False)
class SourcePlans:
    """Function from an epoch to its plan; only the builder calls it. Every rank reads
    ``arguments``.

    ::

        plans/<fingerprint>.arrow           the plan: lengths, settings, epoch and groups decide the name
        plans/<fingerprint>.domains.arrow   the domain of each pack, if domains were given

    An existing plan is not made again by a later job; a job that runs at the same time waits for
    it.
    """

    source: Any
    encoder: Any
    settings: PlanSettings
    directory: Path
    groups: IntArrayLike | None
    domains: Domains | Sequence[str] | None
    lengths: LengthTable | LengthCache | None
    sample_settings: SampleSettings

    @cached_property
    def samples(self) -> tuple[Source, Encoder]:
        """Source and encoder, opened."""
        source = open_source(self.source, cache_dir=self.sample_settings.cache_dir)
        return source, as_encoder(source, self.encoder)

    @property
    def arguments(self) -> Arguments:
        """Arguments that all ranks must share; empty for plans of lengths without samples."""
        cache_dir = self.sample_settings.cache_dir
        return {} if self.source is None else arguments_of(*self.samples, self.settings, cache_dir)

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
                "targets": None
                if table.targets is None
                else fingerprint_array(table.targets.counts),
                "settings": self.settings.as_dict(),
                "time_limit": self.settings.time_limit,
                "groups": None
                if self.groups is None
                else fingerprint_array(np.asarray(self.groups)),
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
        options = {
            item.name: getattr(self.sample_settings, item.name) for item in fields(SampleSettings)
        }
        return measure(source, encoder, budgets=budgets, **{**options, "progress": progress})


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
