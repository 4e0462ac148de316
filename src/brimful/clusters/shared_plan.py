"""One plan for all ranks: rank 0 makes it, the others wait without a collective and map its
file.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from brimful.base.arguments import as_settings, understands
from brimful.base.checks import check_type, setting_number
from brimful.base.fingerprint import short
from brimful.base.locks import cache_dir as default_cache_dir
from brimful.base.progress import Progress, make_progress
from brimful.base.tables import open_table
from brimful.base.typing import AnyPath, Fingerprint, Int32Array, IntArrayLike
from brimful.base.wording import counted, setting
from brimful.clusters.epoch_plans import Builder, BuildPlan, BuiltPlan, Follower, document_of
from brimful.clusters.length_cache import LengthCache
from brimful.clusters.ranks import Ranks, Waiting, check_arguments, find_ranks
from brimful.clusters.source_plans import PackMetadata, SourcePlans
from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.measure.measure_settings import SampleSettings
from brimful.plan import Plan, PlanSettings
from brimful.serve import PackedDataset
from brimful.serve.pack_store import IndexedPacks
from brimful.sources.augmented import Transform
from brimful.store.shards import Pack

_MAX_PATH = 4096 + 20
"""Maximum bytes of the path of a plan, as in file systems, and of its epoch."""


@dataclass(frozen=True, kw_only=True)
class SharedSettings(SampleSettings):
    """Settings of ``shared_plan``, which documents them."""

    directory: AnyPath | None = None
    name: str = "train"
    job: str | None = None
    rank: int | None = None
    world_size: int | None = None
    epoch: int = 0
    replan: bool = True
    ahead: bool = True
    num_epochs: int | None = None
    waiting: Waiting | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_epochs is not None:
            setting_number("num_epochs", self.num_epochs, minimum=1)


@understands({}, SharedSettings)
def shared_plan(
    source: Any,
    encoder: Any,
    settings: PlanSettings,
    *,
    groups: IntArrayLike | None = None,
    domains: Sequence[str] | None = None,
    lengths: LengthTable | LengthCache | None = None,
    **options: Any,
) -> SharedPlan:
    """Return the same plan on every rank; rank 0 alone measures and plans.

    Every rank calls it with the same arguments; source, encoder and settings are compared with the
    values on rank 0 before anything is served. No collective is open in the meantime, so a build
    may take longer than the timeout of the process group. The other ranks poll a document that rank
    0 keeps locked, and map the file of the plan. An error on rank 0, or its death, is raised on
    every rank within seconds.

    Args:
        source: the samples, or anything that ``open_source`` takes. Followers open it and compute
            its fingerprint.
        encoder: turns them into tokens; or a tokenizer, or its name.
        settings: settings of the plan; ``epoch`` must stay 0.
        directory: directory for plans, on a file system with locks that all nodes see; ``shared``
            in the cache if None. Later jobs find the plans there, and jobs that need the same plan
            make it once.
        name: name of this plan among the plans of one job, for messages.
        groups: see ``plan_packs``.
        domains: domain name of each sample, for ``SharedPlan.metadata``.
        lengths: lengths that were measured before, or the file of lengths with its policy; only
            rank 0 needs them.
        epoch: first epoch to serve; for a resumed run, the epoch of the checkpoint.
        replan: plan again for each epoch, so that samples share packs with other samples. False
            keeps the packs, and only the order of the loader changes.
        ahead: plan the next epoch in the background while the current one is served.
        num_epochs: epochs of the run, so that no plan is made for an epoch after the last.
        rank, world_size: rank of this process, and number of ranks; found by ``find_ranks`` if
            None.
        job: name of the job if several jobs share ``directory``; from the environment variables of
            the launcher if None.
        cache_dir, num_proc, on_bad_sample, execution: see ``measure_lengths``.
        waiting: times in seconds (``Waiting``).
        progress: shows the work of rank 0 and the messages of the other ranks; lines or a bar on
            stderr if None.

    Raises:
        PlanMismatchError: source, encoder or settings differ from rank 0; names each difference,
            with both values.
        BuildFailedError: rank 0 failed and this is another rank; names the class of the error, with
            its traceback.
        TaskFailedError: rank 0 died or did not arrive.
        SettingsError: arguments that contradict each other; or a directory that another job uses,
            that has no locks, or that this rank does not share with rank 0.
        BrimfulError: on rank 0, the errors of ``measure_lengths`` and ``plan_packs``.

    >>> import tempfile
    >>> from brimful import PlanSettings, open_source
    >>> from brimful.base.progress import Progress
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
            f"{setting('epoch', settings.epoch)} of the settings is set for each epoch: leave it "
            f"out there, and give {setting('epoch')} to shared_plan"
        )
    shared = as_settings(SharedSettings, None, options)
    folder = (
        default_cache_dir(shared.cache_dir) / "shared"
        if shared.directory is None
        else Path(shared.directory)
    )
    ranks = find_ranks(shared.rank, shared.world_size)
    build = SourcePlans(source, encoder, settings, folder, groups, domains, lengths, shared)
    is_alone = ranks.world_size == 1
    document = None if is_alone else document_of(folder, shared.job, shared.name, ranks.world_size)
    if shared.progress is None:
        shared = replace(shared, progress=make_progress("auto") if ranks.logs else Progress())
    plan = SharedPlan(build, document, ranks, folder, shared)
    if not ranks.is_builder:
        check_arguments(plan._built.arguments, build.arguments, ranks.rank)
    plan.samples = (source, encoder) if source is None else build.samples
    return plan


class SharedPlan:
    """Plan of the current epoch, the same on every rank. ``shared_plan`` makes it.

    Args:
        build: makes the plan of an epoch; called on rank 0.
        document: path of the document that rank 0 writes for the others; None for one process.
        directory: parent directory of the plan files.
        settings: settings of ``shared_plan``.
        options: fields of the settings as keywords: ``epoch``, ``replan``, ``ahead``,
            ``num_epochs``, ``waiting``, ``progress``.

    Attributes:
        ranks: rank of this process, and number of ranks.
        epoch: epoch that the plan is for.
        samples: source and encoder, for ``dataset``; None if they were not given.
    """

    def __init__(
        self,
        build: BuildPlan,
        document: Path | None,
        ranks: Ranks,
        directory: Path,
        settings: SharedSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = settings = as_settings(SharedSettings, settings, options)
        self.ranks, self.replans, self._directory = ranks, settings.replan, directory
        self.samples: tuple[Any, Any] | None = None
        progress = settings.progress or Progress()
        self._builder = Builder(build, document, progress=progress) if ranks.is_builder else None
        if self._builder is not None:
            self._get = self._builder.get
        else:
            assert document is not None, "another rank writes it"
            waiting = settings.waiting or Waiting()
            self._get = Follower(document, ranks, directory, progress=progress, waiting=waiting).get
        self.epoch = -1
        self._built: BuiltPlan
        try:
            self.set_epoch(settings.epoch)
        except BaseException:
            self.close()
            raise

    @property
    def plan(self) -> Plan:
        """The plan of the epoch, mapped from its file."""
        return self._built.plan

    @property
    def identity(self) -> Fingerprint:
        """Fingerprint of everything that decides the plans of all epochs, for states that outlive
        an epoch.
        """
        return self._built.identity

    @property
    def metadata(self) -> PackMetadata:
        """Metadata of the packs: ``indices``, ``lengths``, ``group``, ``group_domains``; equal on
        every rank. Without domains all packs belong to one.

        Raises:
            CorruptFileError: their file is damaged.
        """
        plan, files = self.plan, self._built.files
        if len(files) == 1:
            group: Int32Array = np.broadcast_to(np.int32(0), (plan.num_packs,))
            return PackMetadata(plan, group, ("all",))
        table = open_table(self._directory / files[1])
        return PackMetadata(plan, table.flat("group"), tuple(table.description["names"]))

    def set_epoch(self, epoch: int) -> None:
        """Go to the plan of an epoch; every rank calls it, between two epochs.

        On rank 0 the plan is ready if it was made ahead; the other ranks wait for it without a
        collective. The current plan stays in use until the next one arrives.

        Raises:
            BrimfulError: the errors of ``shared_plan``; the old plan stays in use.
        """
        epoch = setting_number("epoch", epoch, minimum=0)
        if epoch == self.epoch:
            return
        if self.epoch < 0 or self.replans:
            self._built = self._get(epoch if self.replans else 0)
        self.epoch, num_epochs = epoch, self._settings.num_epochs
        has_next = self.replans and (num_epochs is None or epoch + 1 < num_epochs)
        if has_next and self._settings.ahead and self._builder is not None:
            self._builder.prepare(epoch + 1)

    def dataset(self, *, transforms: Sequence[Transform] = ()) -> SharedPackedDataset:
        """Return the packs of the plan as a map-style data set for trainers, which follows
        ``set_epoch``.

        Args:
            transforms: see ``PackedDataset.from_plan``.

        Raises:
            SettingsError: the plan was made without source and encoder.
        """
        if self.samples is None:
            raise SettingsError(
                "this plan was made without samples: use SharedPackedDataset(source, encoder, "
                "shared)"
            )
        return SharedPackedDataset(*self.samples, self, transforms=transforms)

    def close(self) -> None:
        """Close the document of rank 0: a rank that waits for it afterwards gets an error."""
        if self._builder is not None:
            self._builder.close()

    def __enter__(self) -> SharedPlan:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"SharedPlan(epoch {self.epoch}, {self.plan.num_packs:,} packs, rank "
            f"{self.ranks.rank} of {self.ranks.world_size}, {short(self.plan.fingerprint)})"
        )


class SharedPackedDataset(IndexedPacks):
    """Packs of a shared plan, encoded at access, with ``set_epoch`` for all ranks.

    ``PackLoader``, the trainers of Transformers and Lightning, and torchtitan's loader accept it
    like a ``PackedDataset``. Workers of a loader, persistent workers too, see the plan of the
    epoch: the name of its file is in shared memory.

    Attributes:
        fingerprint: fingerprint of what decides the plans of all epochs: a loader state belongs to
            a run, not to an epoch.
        replans: true if the membership of packs changes with the epoch.
        alignment: multiples of tokens that the plan left room for.
        attachment_settings: settings that media were encoded with; None for packs of text.

    Args:
        source: the samples, or anything that ``open_source`` takes.
        encoder: the encoder that measured them.
        shared: the plan, as ``shared_plan`` returns it.
        transforms: see ``PackedDataset.from_plan``.

    >>> import tempfile
    >>> from brimful import PlanSettings
    >>> from brimful.base.progress import Progress
    >>> from brimful.clusters import shared_plan
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> chats, encoder, folder = [{"prompt": "1+1?", "completion": "2"}], toy_chat_encoder(), tempfile.mkdtemp()
    >>> shared = shared_plan(chats, encoder, PlanSettings(capacity=64), directory=folder, num_epochs=1, progress=Progress())
    >>> SharedPackedDataset(chats, encoder, shared)[0]
    Pack(22 tokens, 1 segments, 2 loss tokens)
    """

    def __init__(
        self, source: Any, encoder: Any, shared: SharedPlan, *, transforms: Sequence[Transform] = ()
    ) -> None:
        check_type("shared", shared, SharedPlan, "what shared_plan returns")
        self._packs_of = partial(
            PackedDataset.from_plan, source, encoder, transforms=tuple(transforms)
        )
        self._shared: SharedPlan | None = shared
        self.fingerprint, self.replans = shared.identity, shared.replans
        self._served = ""
        # Read by workers, which hold a copy of this object from before later epochs.
        self._current: Any = multiprocessing.RawArray("c", _MAX_PATH)
        self._pid = os.getpid()
        self._follow(shared)
        self.alignment, self.attachment_settings = (
            self._packs.alignment,
            self._packs.attachment_settings,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Facts on the packs of all epochs, for the state of a loader."""
        return {name: value for name, value in self._packs_now().facts.items() if name != "epoch"}

    @property
    def epoch(self) -> int:
        """Epoch that is served."""
        return self._of_main_process().epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the packs of an epoch, on all ranks; call it between two epochs, before its batches
        are requested.
        """
        # A worker asks for the epoch that its training process serves.
        if str(epoch) != self._epoch_and_path()[0]:
            shared = self._of_main_process()
            shared.set_epoch(epoch)
            self._follow(shared)

    def __len__(self) -> int:
        return len(self._packs_now())

    def _pack(self, index: int) -> Pack:
        return self._packs_now()[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Pack]:
        return self._packs_now().__getitems__(indices)

    def _follow(self, shared: SharedPlan) -> None:
        """Serve the plan of an epoch, here and in workers."""
        self._current.value = f"{shared.epoch} {shared.plan.path}".encode()
        self._packs_now()

    def _epoch_and_path(self) -> list[str]:
        """Return the epoch that the training process serves, and the path of its plan."""
        value: bytes = self._current.value
        return value.decode().split(" ", 1)

    def _packs_now(self) -> PackedDataset:
        """Return the packs of the current plan, which a worker may not have opened yet."""
        path = self._epoch_and_path()[1]
        if path != self._served:
            plan = Plan.open(path)
            self._packs, self._served = self._packs_of(plan), path
        return self._packs

    def _of_main_process(self) -> SharedPlan:
        # A forked copy has no threads that plan.
        if self._shared is None or os.getpid() != self._pid:
            raise SettingsError(
                "this copy of the data set is in a worker, and serves epoch "
                f"{self._epoch_and_path()[0]}: set_epoch belongs to the process that made it"
            )
        return self._shared

    def __getstate__(self) -> dict[str, Any]:
        # The receiver opens the plan by its path: arrays may be gigabytes, and threads belong to
        # one process.
        state = {**self.__dict__, "_shared": None, "_packs": None, "_served": ""}
        if multiprocessing.context.get_spawning_popen() is None:
            # Shared memory can only be passed to a process that is being started; any other copy
            # stays in its epoch.
            state["_current"] = SimpleNamespace(value=self._current.value)
        return state

    def __repr__(self) -> str:
        return (
            f"SharedPackedDataset({counted(len(self), 'pack')}, "
            f"{short(self._packs_now().fingerprint)})"
        )
