"""Settings of a plan: one frozen object that checks its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field
from typing import Any

from brimful.base.arguments import option, settings_from
from brimful.base.checks import check_type, choice_of, is_number, setting_number
from brimful.base.sharing import ShareMode, wing_of
from brimful.base.typing import Fingerprint
from brimful.base.wings import DRAWS, loaded
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.plan.algorithms import ALGORITHMS, ALGORITHMS_BY_ANY_NAME
from brimful.plan.policies.budgets import UNALIGNED, Alignment, Budgets
from brimful.plan.policies.draw import Draw
from brimful.plan.policies.overflow import NoTarget, Overflow

_MAX_CAPACITY = 2**31 - 1
"""Maximum tokens of a pack: positions in it are int32."""


_ALGORITHMS_IN_HELP = ", ".join(
    f"{entry.name} ({', '.join(entry.aliases)})" if entry.aliases else entry.name
    for entry in ALGORITHMS.values()
)
"""The names of the algorithms, each with its aliases."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Options of ``plan_packs``, checked and normalized. ``plan_packs`` explains them.

    Pass them to ``plan_with``, ``pack_dataset`` or ``dataclasses.replace``:

    >>> from dataclasses import replace
    >>> settings = PlanSettings(capacity=4096, overflow="drop", algorithm="bfd")
    >>> replace(settings, epoch=1)
    PlanSettings(capacity 4,096, algorithm best_fit_decreasing, overflow drop, seed 0, epoch 1)

    Attributes:
        overflow_policy: ``overflow`` as a policy.
        no_target_policy: ``no_target`` as a policy.
        row_alignment: ``alignment`` as an object.
        shares: true if samples of a pack share anything.
        usable: maximum aligned tokens of a pack.
        longest_segment: maximum tokens that the overflow policy leaves of a sample.

    Raises:
        SettingsError: an impossible value, or two that contradict each other; names the flags.
    """

    capacity: int = option(
        MISSING,
        "Most tokens per pack; with an alignment, rounded down to a multiple of it.",
        "TOKENS",
        *("--max-length", "--capacity", "--packing-length", "--seq-length"),
    )
    overflow: Overflow | str | None = option(
        None,
        "What to do with samples longer than a pack; if not given, split for concat_split, and "
        "error for the others.",
    )
    no_target: NoTarget | str = option(
        NoTarget.ERROR,
        "What to do with samples without a target of the loss, before or after truncation.",
    )
    algorithm: str = option("auto", f"How to pack: {_ALGORITHMS_IN_HELP}.", "NAME")
    phases: Any = option(
        None, "Recipe of phased, such as 'powers_of_two; half(min_fill=0.96); finish'.", "TEXT"
    )
    num_packs: int | None = option(None, "Exact number of packs that spread makes.", "NUMBER")
    budgets: Mapping[str, int] | None = option(
        None,
        "Limit per pack for another quantity: a column of the lengths, samples, or squares.",
        "NAME=MOST",
        "--budget",
        example="patches=16384",
    )
    alignment: Alignment | int = UNALIGNED
    min_fill: float = option(0.0, "Packs with less fill are packed again, then come last.", "SHARE")
    time_limit: float | None = option(
        None, "Limit on the search of optimal (default 60) and auto.", "SECONDS"
    )
    seed: int | None = option(0, "Seed of the order of packs and of equally long samples.")
    epoch: int = option(0, "Pass over the data; each pass combines samples differently.")
    share: ShareMode | str = option(
        ShareMode.NONE, "What samples of a pack share: none, or the prefixes that they begin with."
    )
    max_path: int | None = option(
        None, "Most tokens of a sample, if a pack may be longer than the context.", "TOKENS"
    )
    draw: Draw | None = None

    overflow_policy: Overflow = field(init=False, repr=False, compare=False)
    no_target_policy: NoTarget = field(init=False, repr=False, compare=False)
    row_alignment: Alignment = field(init=False, repr=False, compare=False)
    shares: bool = field(init=False, repr=False, compare=False)
    usable: int = field(init=False, repr=False, compare=False)
    longest_segment: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_type("algorithm", self.algorithm, str, "a name")
        if self.budgets is not None:
            check_type("budgets", self.budgets, Mapping, "a mapping such as {'patches': 4096}")
        if self.draw is not None:
            examples = " or ".join(DRAWS.values())
            check_type("draw", self.draw, Draw, f"a Draw such as {examples}")
        capacity = setting_number("capacity", self.capacity, minimum=1, maximum=_MAX_CAPACITY)
        num_packs = self.num_packs
        if num_packs is not None:
            num_packs = setting_number("num_packs", num_packs, minimum=1)
        max_path = self.max_path
        if max_path is not None:
            max_path = setting_number("max_path", max_path, minimum=1)
        seed = None if self.seed is None else setting_number("seed", self.seed)
        epoch = setting_number("epoch", self.epoch, minimum=0)
        for name, value, most, bounds in (
            ("min_fill", self.min_fill, 1.0, "from 0 to 1, a share of the capacity"),
            ("time_limit", self.time_limit or 0, float("inf"), "of at least 0, in seconds"),
        ):
            if not is_number(value) or not 0 <= value <= most:
                raise SettingsError(f"{setting(name)} must be a number {bounds}, and is {value!r}")
        share = choice_of(ShareMode, self.share, argument="share")
        no_target = choice_of(NoTarget, self.no_target, argument="no_target")
        alignment = (
            self.alignment
            if isinstance(self.alignment, Alignment)
            else Alignment(segment=self.alignment)
        )
        rule = ALGORITHMS_BY_ANY_NAME.get(self.algorithm)
        if rule is None:
            aliases = ", ".join(
                f"{alias} for {entry.name}"
                for entry in ALGORITHMS.values()
                for alias in entry.aliases
            )
            raise SettingsError(
                f"{setting('algorithm', self.algorithm)} is unknown: use one of "
                f"{', '.join(ALGORITHMS)} (or {aliases})"
            )
        overflow = self.overflow
        if overflow is None:  # the stream of all tokens is cut in any case
            overflow = "split" if rule.name == "concat_split" else "error"
        overflow = choice_of(Overflow, overflow, argument="overflow")
        if self.budgets:
            Budgets.of(self.capacity, self.budgets)
        usable = capacity if alignment is UNALIGNED else alignment.usable(capacity)
        for owner in ALGORITHMS.values():
            for name, reader in owner.options.items():
                if owner is rule:
                    self.__dict__[name] = loaded(reader)(getattr(self, name))
                elif getattr(self, name) is not None:
                    raise SettingsError(
                        f"{setting(name)} is for {setting('algorithm', owner.name)}, and the "
                        f"algorithm is {rule.name}"
                    )
        self.__dict__.update(
            capacity=capacity,
            num_packs=num_packs,
            seed=seed,
            epoch=epoch,
            min_fill=float(self.min_fill),
            algorithm=rule.name,
            overflow=overflow,
            no_target=no_target,
            alignment=alignment,
            share=share,
            max_path=max_path,
            overflow_policy=overflow,
            no_target_policy=no_target,
            row_alignment=alignment,
            usable=usable,
            shares=share is not ShareMode.NONE,
            longest_segment=min(
                capacity if rule.name == "concat_split" else usable, max_path or capacity
            ),
        )
        if self.shares:
            wing_of(share).check_settings(self)
        if self.draw is not None:
            self.draw.check(self)
        # A default call breaks none of the rules below, and its reader need not follow the messages.
        if not (rule.contradicts or num_packs or max_path):
            return
        algorithm, contradicts = setting("algorithm", self.algorithm), rule.contradicts
        budget = next(iter(self.budgets or ()), None)
        packs_setting = num_packs and setting("num_packs", num_packs)
        for is_wrong, message in (
            (
                packs_setting and self.algorithm != "spread",
                f"{packs_setting} is for {setting('algorithm', 'spread')}, and the algorithm is "
                f"{self.algorithm}",
            ),
            (
                packs_setting and self.min_fill,
                f"{setting('min_fill')} packs samples again, into another number than {packs_setting}: "
                "leave one out",
            ),
            (
                budget and "budgets" in contradicts,
                f"{algorithm} knows only tokens and would ignore a budget of {budget}: use "
                f"{setting('algorithm', 'auto')}",
            ),
            (
                self.min_fill and "min_fill" in contradicts,
                f"{setting('min_fill')} packs samples again and would break the order that "
                f"{algorithm} keeps: leave one out",
            ),
            (
                not self.row_alignment.is_none and "alignment" in contradicts,
                f"{algorithm} fills packs to the last token and leaves no room for "
                f"{self.alignment}: use {setting('overflow', 'split')} with another algorithm",
            ),
            (
                max_path and self.algorithm == "concat_split",
                f"{algorithm} cuts the stream of all samples where packs end, whatever "
                f"{setting('max_path', max_path)} says: leave one out",
            ),
        ):
            if is_wrong:
                raise SettingsError(message)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON: four always, the others if they differ from the
        defaults.
        """
        record: dict[str, Any] = {
            "algorithm": self.algorithm,
            "overflow": self.overflow_policy.value,
            "seed": self.seed,
            "capacity": self.capacity,
        }
        others: dict[str, Any] = {
            "no_target": ""
            if self.no_target_policy is NoTarget.ERROR
            else self.no_target_policy.value,
            "budgets": {name: int(limit) for name, limit in (self.budgets or {}).items()},
            "alignment": {} if self.row_alignment.is_none else asdict(self.row_alignment),
            "min_fill": self.min_fill,
            "phases": str(self.phases or ""),
            "epoch": self.epoch,
            "num_packs": self.num_packs,
            "share": ShareMode(self.share).value if self.shares else "",
            "max_path": self.max_path,
        }
        if self.draw is not None:
            others[self.draw.key] = self.draw.as_dict()
        return record | {name: value for name, value in others.items() if value}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> PlanSettings:
        """Read the settings from the record of a plan file, which also holds its outcome.

        Raises:
            SettingsError: settings that this version does not understand.
        """
        objects: dict[str, Any] = {}
        if "alignment" in record:
            objects["alignment"] = Alignment(**record["alignment"])
        for key in record.keys() & DRAWS:
            objects["draw"] = loaded(DRAWS[key])(**record[key])
        return settings_from(cls, {**record, **objects})

    def identity(self, groups: Fingerprint | None) -> dict[str, Any]:
        """Return the settings that a pack store is compared with, in addition to its capacity.

        Args:
            groups: fingerprint of the groups, if any.
        """
        record = self.as_dict()
        del record["capacity"]
        return record if groups is None else {**record, "groups": groups}

    def __repr__(self) -> str:
        record = self.as_dict()
        pairs = ", ".join(f"{name} {value}" for name, value in record.items() if name != "capacity")
        return f"PlanSettings(capacity {self.capacity:,}, {pairs})"
