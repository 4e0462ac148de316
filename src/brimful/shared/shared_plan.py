"""One plan for all ranks: rank 0 makes it, the others wait without a collective and map its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from brimful.cache import cache_dir as default_cache_dir
from brimful.checks import check_type, setting_number
from brimful.errors import SettingsError
from brimful.fingerprint import short
from brimful.measure import LengthCache, LengthTable
from brimful.measure.filters import Filter
from brimful.measure.job import OnBadSample
from brimful.messages import setting
from brimful.plan import Plan, PlanSettings
from brimful.progress import Progress, make_progress
from brimful.shared.arguments import Arguments, check_arguments
from brimful.shared.builder import Builder, BuildPlan
from brimful.shared.document import document_of
from brimful.shared.domains import PackMetadata, open_metadata
from brimful.shared.follower import Follower
from brimful.shared.ranks import Ranks, find_ranks
from brimful.shared.source_plans import SourcePlans
from brimful.shared.waiting import Waiting
from brimful.typing import AnyIntArray, Fingerprint

if TYPE_CHECKING:
    from brimful.shared.dataset import SharedPackedDataset
    from brimful.sources.augmented import Transform


def shared_plan(
    source: Any,
    encoder: Any,
    settings: PlanSettings,
    *,
    directory: str | os.PathLike[str] | None = None,
    name: str = "train",
    groups: AnyIntArray | Sequence[int] | None = None,
    domains: Sequence[str] | None = None,
    lengths: LengthTable | LengthCache | None = None,
    epoch: int = 0,
    replan: bool = True,
    ahead: bool = True,
    num_epochs: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    job: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    num_proc: int | None = None,
    on_bad_sample: OnBadSample = "error",
    filters: Sequence[Filter | str] | None = None,
    waiting: Waiting | None = None,
    progress: Progress | None = None,
) -> SharedPlan:
    """Return the same plan on every rank; rank 0 alone measures and plans.

    Every rank calls it with the same arguments; source, encoder and settings are compared with the values on rank 0
    before anything is served. No collective is open in the meantime, so a build may take longer than the timeout of the
    process group. The other ranks poll a document that rank 0 keeps locked, and map the file of the plan. An error on
    rank 0, or its death, is raised on every rank within seconds.

    Args:
        source: the samples, or anything that ``open_source`` takes. Followers open it and compute its fingerprint.
        encoder: turns them into tokens; or a tokenizer, or its name.
        settings: settings of the plan; ``epoch`` must stay 0.
        directory: directory for plans, on a file system with locks that all nodes see; ``shared`` in the cache if None.
            Later jobs find the plans there, and jobs that need the same plan make it once.
        name: name of this plan among the plans of one job, for messages.
        groups: see ``plan_packs``.
        domains: domain name of each sample, for ``SharedPlan.metadata``.
        lengths: lengths that were measured before, or the file of lengths with its policy; only rank 0 needs them.
        epoch: first epoch to serve; for a resumed run, the epoch of the checkpoint.
        replan: plan again for each epoch, so that samples share packs with other samples. False keeps the packs, and
            only the order of the loader changes.
        ahead: plan the next epoch in the background while the current one is served.
        num_epochs: epochs of the run, so that no plan is made for an epoch after the last.
        rank, world_size: rank of this process, and number of ranks; found by ``find_ranks`` if None.
        job: name of the job if several jobs share ``directory``; from the environment variables of the launcher if
            None.
        cache_dir, num_proc, on_bad_sample, filters: see ``measure_lengths``.
        waiting: times in seconds (``Waiting``).
        progress: shows the work of rank 0 and the messages of the other ranks; lines or a bar on stderr if None.

    Raises:
        PlanMismatchError: source, encoder or settings differ from rank 0; names each difference, with both values.
        BuildFailedError: rank 0 failed and this is another rank; names the class of the error, with its traceback.
        TaskFailedError: rank 0 died or did not arrive.
        SettingsError: arguments that contradict each other; or a directory that another job uses, that has no locks, or
            that this rank does not share with rank 0.
        BrimfulError: on rank 0, the errors of ``measure_lengths`` and ``plan_packs``.

    >>> import tempfile
    >>> from brimful import PlanSettings, open_source
    >>> from brimful.progress import Progress
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> chats = [{"prompt": "1+1?", "completion": "2"}, {"prompt": "2+2?", "completion": "4"}]
    >>> folder = tempfile.mkdtemp()
    >>> settings = PlanSettings(capacity=64)
    >>> with shared_plan(chats, toy_chat_encoder(), settings, directory=folder, ahead=False, progress=Progress()) as plan:
    ...     plan.epoch, plan.plan.num_packs, sorted(plan.metadata.indices.row(0).tolist())
    (0, 1, [0, 1])
    """
    check_type("settings", settings, PlanSettings, "a PlanSettings")
    if settings.epoch:
        raise SettingsError(
            f"{setting('epoch', settings.epoch)} of the settings is set for each epoch: leave it out there, and give "
            f"{setting('epoch')} to shared_plan"
        )
    folder = default_cache_dir(cache_dir) / "shared" if directory is None else Path(directory)
    ranks = find_ranks(rank, world_size)
    build = SourcePlans(
        source,
        encoder,
        settings,
        folder,
        groups=groups,
        domains=domains,
        lengths=lengths,
        measure_options={
            "cache_dir": cache_dir,
            "num_proc": num_proc,
            "on_bad_sample": on_bad_sample,
            "filters": filters,
        },
    )
    document = document_of(folder, job, name, ranks.world_size)
    if progress is None:
        progress = make_progress("auto") if ranks.speaks else Progress()
    shared = SharedPlan(
        build,
        None if ranks.world_size == 1 else document,
        ranks,
        folder,
        epoch=setting_number("epoch", epoch, minimum=0),
        replan=replan,
        ahead=ahead,
        num_epochs=None if num_epochs is None else setting_number("num_epochs", num_epochs, minimum=1),
        waiting=waiting,
        progress=progress,
    )
    if not ranks.is_builder:
        check_arguments(shared.arguments, build.arguments, ranks.rank)
    shared.samples = (source, encoder) if source is None else build.samples
    return shared


class SharedPlan:
    """Plan of the current epoch, the same on every rank. ``shared_plan`` makes it.

    Args:
        build: makes the plan of an epoch; called on rank 0.
        document: path of the document that rank 0 writes for the others; None for one process.
        directory: parent directory of the plan files.
        epoch, replan, ahead, num_epochs, waiting, progress: see ``shared_plan``.

    Attributes:
        ranks: rank of this process, and number of ranks.
        arguments: arguments of rank 0 that the plan was made with.
        samples: source and encoder, for ``dataset``; None if they were not given.
    """

    def __init__(
        self,
        build: BuildPlan,
        document: Path | None,
        ranks: Ranks,
        directory: Path,
        *,
        epoch: int = 0,
        replan: bool = True,
        ahead: bool = True,
        num_epochs: int | None = None,
        waiting: Waiting | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.ranks, self.replans = ranks, replan
        self.samples: tuple[Any, Any] | None = None
        self.arguments: Arguments = {}
        self._directory, self._ahead, self._num_epochs = directory, ahead, num_epochs
        waiting, progress = waiting or Waiting(), progress or Progress()
        self._follower: Follower | None = None
        self._builder: Builder | None = None
        if ranks.is_builder:
            self._builder = Builder(build, document, progress=progress)
        else:
            assert document is not None, "another rank writes it"
            self._follower = Follower(document, ranks, directory, progress=progress, waiting=waiting)
        self._epoch: int | None = None
        try:
            self.set_epoch(epoch)
        except BaseException:
            self.close()
            raise

    @property
    def plan(self) -> Plan:
        """The plan of the epoch, mapped from its file."""
        return self._plan

    @property
    def epoch(self) -> int:
        """Epoch that the plan is for."""
        assert self._epoch is not None
        return self._epoch

    @property
    def identity(self) -> Fingerprint:
        """Fingerprint of everything that decides the plans of all epochs, for states that outlive an epoch."""
        return self._identity

    @property
    def metadata(self) -> PackMetadata:
        """Metadata of the packs: ``indices``, ``lengths``, ``group``, ``group_domains``; equal on every rank."""
        further = self._files[1:]
        return open_metadata(self._plan, self._directory / further[0] if further else None)

    def set_epoch(self, epoch: int) -> None:
        """Go to the plan of an epoch; every rank calls it, between two epochs.

        On rank 0 the plan is ready if it was made ahead; the other ranks wait for it without a collective. The current
        plan stays in use until the next one arrives.

        Raises:
            BrimfulError: the errors of ``shared_plan``; the old plan stays in use.
        """
        epoch = setting_number("epoch", epoch, minimum=0)
        if epoch == self._epoch:
            return
        if self._epoch is None or self.replans:
            self._go_to(epoch if self.replans else 0)
        self._epoch = epoch
        next_epoch = epoch + 1
        if (
            self._builder is not None
            and self._ahead
            and self.replans
            and next_epoch < (self._num_epochs or next_epoch + 1)
        ):
            self._builder.prepare(next_epoch)

    def dataset(self, *, transforms: Sequence[Transform] = ()) -> SharedPackedDataset:
        """Return the packs of the plan as a map-style data set for trainers, which follows ``set_epoch``.

        Args:
            transforms: see ``PackedDataset.from_plan``.

        Raises:
            SettingsError: the plan was made without source and encoder.
        """
        from brimful.shared.dataset import SharedPackedDataset

        if self.samples is None:
            raise SettingsError("this plan was made without samples: use SharedPackedDataset(source, encoder, shared)")
        return SharedPackedDataset(*self.samples, self, transforms=transforms)

    def close(self) -> None:
        """Close the document of rank 0: a rank that waits for it afterwards gets an error."""
        if self._builder is not None:
            self._builder.close()

    def __enter__(self) -> SharedPlan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _go_to(self, epoch: int) -> None:
        if self._builder is not None:
            built_plan = self._builder.get(epoch)
            self._plan, self._identity, self.arguments = built_plan.plan, built_plan.identity, built_plan.arguments
            self._files = built_plan.files
        else:
            assert self._follower is not None
            self._plan, told = self._follower.get(epoch)
            self._identity, self._files, self.arguments = told["identity"], tuple(told["files"]), told["arguments"]

    def __repr__(self) -> str:
        return (
            f"SharedPlan(epoch {self._epoch}, {self._plan.num_packs:,} packs, rank {self.ranks.rank} of "
            f"{self.ranks.world_size}, {short(self._plan.fingerprint)})"
        )
