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
from brimful.base.locks import cached, exclusive
from brimful.base.progress import Progress
from brimful.base.tables import Ragged, write_table
from brimful.base.typing import Fingerprint, Int32Array, Int64Array, IntArrayLike
from brimful.base.wording import setting
from brimful.clusters.epoch_plans import BuiltPlan
from brimful.clusters.length_cache import LengthCache
from brimful.clusters.ranks import Arguments, arguments_of
from brimful.encode.choose import as_encoder
from brimful.encode.encoder import Encoder
from brimful.errors import BrimfulError, SettingsError
from brimful.measure import LengthTable, measure_lengths
from brimful.measure.measure_settings import SampleSettings
from brimful.plan import Plan, PlanSettings, plan_with
from brimful.plan.policies.budgets import measured_budgets
from brimful.sources.opening import open_source
from brimful.sources.source import Source


@dataclass(frozen=True, eq=False)
class PackMetadata:
    """Facts about every pack, identical on every rank; views of the plan where possible.

    Attributes:
        indices: sample ids of each pack, one for each segment; of a plan with trees, one for each
            sample; ``indices.row(7)``.
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
        plan = self.plan
        if plan.sharing is None:
            return Ragged(plan.sample_ids, plan.offsets)
        ends = np.flatnonzero(plan.ends_sample)
        return Ragged(plan.sample_ids[ends], np.searchsorted(ends, plan.offsets))

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


def group_of_packs(plan: Plan, codes: Int32Array) -> Int32Array:
    """Return the domain with the largest number of tokens in each pack, ``int32[num_packs]``; the
    lowest on a tie. Samples count with all of their tokens, also the ones that they share.

    Args:
        plan: of the packs.
        codes: ``int32[num_samples]``, number of the domain of each sample.

    >>> from brimful import plan_packs
    >>> plan = plan_packs([3, 2, 2, 4], capacity=7, algorithm="next_fit")
    >>> group_of_packs(plan, np.array([1, 0, 0, 1])).tolist()
    [0, 1]
    """
    packs = np.repeat(np.arange(plan.num_packs), np.diff(plan.offsets))
    sample_ids, lengths = plan.sample_ids[: len(packs)], plan.lengths[: len(packs)]
    if plan.sharing is not None:
        ends = np.flatnonzero(plan.ends_sample)
        packs, sample_ids = packs[ends], sample_ids[ends]
        lengths = plan.starts[ends] + lengths[ends]
    num_domains = int(codes.max(initial=0)) + 1
    cells = packs * num_domains + codes[sample_ids]
    # One cell for each domain in each pack, in order.
    cells, indices = np.unique(cells, return_inverse=True)
    tokens = np.bincount(indices, weights=lengths)
    order = np.lexsort((-tokens, cells // num_domains))
    _, firsts = np.unique(cells[order] // num_domains, return_index=True)
    group: Int32Array = (cells[order[firsts]] % num_domains).astype(np.int32)
    return group


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
    domains: Sequence[str] | None
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

    @cached_property
    def numbered_domains(self) -> tuple[tuple[str, ...], Int32Array]:
        """Names of the domains in alphabetical order, and the number of each sample's."""
        names, codes = np.unique(np.array(self.domains, dtype=object), return_inverse=True)
        return tuple(names.tolist()), codes.astype(np.int32)

    def __call__(self, epoch: int, progress: Progress) -> BuiltPlan:
        if not isinstance(self.lengths, LengthTable):
            self.lengths = self._measure(progress)
        table, has_domains = self.lengths, self.domains is not None
        if self.domains is not None and len(self.domains) != len(table):
            raise SettingsError(
                f"{setting('domains')} has {len(self.domains):,} names for {len(table):,} samples: "
                "give one for each"
            )
        names, codes = self.numbered_domains if has_domains else ((), np.empty(0, dtype=np.int32))
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
                "domains": fingerprint_of([fingerprint_array(codes), list(names)])
                if has_domains
                else None,
            }
        )
        settings = replace(self.settings, epoch=epoch)
        name = fingerprint_of([identity, epoch])
        path, groups_path = (
            cached(self.directory / "plans" / f"{name}{end}")
            for end in (".arrow", ".domains.arrow")
        )
        files = [str(file).removeprefix(f"{self.directory}/") for file in (path, groups_path)]
        with exclusive(path), progress.stage("plan", total=1, unit="plan"):
            plan = _kept(path, settings)
            if plan is None:
                plan_with(table, settings, groups=self.groups).save(path)
                plan = Plan.open(path)
            if has_domains and not groups_path.exists():
                columns = {"group": group_of_packs(plan, codes)}
                write_table(groups_path, columns, {"names": list(names)})
            progress.advance(1)
        return BuiltPlan(plan, identity, files if has_domains else files[:1], self.arguments)

    def _measure(self, progress: Progress) -> LengthTable:
        source, encoder = self.samples
        budgets = measured_budgets(self.settings.budgets or (), encoder.budgets)
        measure = self.lengths.lengths if isinstance(self.lengths, LengthCache) else measure_lengths
        options = {
            item.name: getattr(self.sample_settings, item.name) for item in fields(SampleSettings)
        }
        options |= {"share": self.settings.share, "progress": progress}
        return measure(source, encoder, budgets=budgets, **options)


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
