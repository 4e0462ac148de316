"""Map-style data set of the packs of a shared plan, for every trainer; it follows the plan of each epoch."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
from collections.abc import Sequence
from typing import Any

from brimful.checks import check_type
from brimful.errors import SettingsError
from brimful.fingerprint import short
from brimful.messages import counted
from brimful.plan import Alignment, Plan
from brimful.serve import PackedDataset
from brimful.serve.pack_store import IndexedPacks
from brimful.shards import Pack
from brimful.shared.domains import PackMetadata
from brimful.shared.shared_plan import SharedPlan
from brimful.sources.augmented import Transform
from brimful.typing import Fingerprint

_MAX_PATH = 4096
"""Maximum bytes of the path of a plan, as in file systems."""


class SharedPackedDataset(IndexedPacks):
    """Packs of a shared plan, encoded at access, with ``set_epoch`` for all ranks.

    ``PackLoader``, the trainers of Transformers and Lightning, and torchtitan's loader accept it like a
    ``PackedDataset``. Workers of a loader, persistent workers too, see the plan of the epoch: the name of its file is
    in shared memory.

    Args:
        source: the samples, or anything that ``open_source`` takes.
        encoder: the encoder that measured them.
        shared: the plan, as ``shared_plan`` returns it.
        transforms: see ``PackedDataset.from_plan``.

    >>> import tempfile
    >>> from brimful import PlanSettings
    >>> from brimful.progress import Progress
    >>> from brimful.shared import shared_plan
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> chats, encoder, folder = [{"prompt": "1+1?", "completion": "2"}], toy_chat_encoder(), tempfile.mkdtemp()
    >>> shared = shared_plan(chats, encoder, PlanSettings(capacity=64), directory=folder, num_epochs=1, progress=Progress())
    >>> SharedPackedDataset(chats, encoder, shared)[0]
    Pack(22 tokens, 1 segments, 2 loss tokens)
    """

    def __init__(self, source: Any, encoder: Any, shared: SharedPlan, *, transforms: Sequence[Transform] = ()) -> None:
        check_type("shared", shared, SharedPlan, "what shared_plan returns")
        self._source, self._encoder, self._transforms = source, encoder, tuple(transforms)
        self._shared: SharedPlan | None = shared
        self._identity = shared.identity
        self._replans = shared.replans
        self._served = ""
        # Read by workers, which hold a copy of this object from before later epochs.
        self._current: Any = multiprocessing.RawArray("c", _MAX_PATH)
        self._point_to(shared.plan)

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of what decides the plans of all epochs: a loader state belongs to a run, not to an epoch."""
        return self._identity

    @property
    def facts(self) -> dict[str, Any]:
        """Facts on the packs of all epochs, for the state of a loader."""
        return {name: value for name, value in self._current_packs().facts.items() if name != "epoch"}

    @property
    def plan_fingerprint(self) -> Fingerprint:
        """Fingerprint of the plan that is served."""
        return self._current_packs().fingerprint

    @property
    def replans(self) -> bool:
        """True if the membership of packs changes with the epoch."""
        return self._replans

    @property
    def epoch(self) -> int:
        """Epoch that is served."""
        return self._of_main_process().epoch

    @property
    def metadata(self) -> PackMetadata:
        """Metadata of the packs of this epoch, equal on every rank."""
        return self._of_main_process().metadata

    @property
    def alignment(self) -> Alignment:
        """Multiples of tokens that the plan left room for."""
        return self._current_packs().alignment

    @property
    def media_settings(self) -> dict[str, Any] | None:
        """Settings that media were encoded with; None for packs of text."""
        return self._current_packs().media_settings

    def set_epoch(self, epoch: int) -> None:
        """Go to the packs of an epoch, on all ranks; call it between two epochs, before its batches are requested."""
        shared = self._of_main_process()
        shared.set_epoch(epoch)
        self._point_to(shared.plan)

    def __len__(self) -> int:
        return len(self._current_packs())

    def _pack(self, index: int) -> Pack:
        return self._current_packs()[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Pack]:
        return self._current_packs().__getitems__(indices)

    def _point_to(self, plan: Plan) -> None:
        assert plan.path is not None, "shared plans are files"
        path = plan.path.encode()
        if len(path) >= _MAX_PATH:
            raise SettingsError(f"the path of the plan is too long: {plan.path}")
        if path.decode() != self._served:
            self._packs = self._packs_of(plan)
            self._served = plan.path
        self._current.value = path

    def _current_packs(self) -> PackedDataset:
        path = self._current.value.decode()
        if path != self._served:
            # In a worker that was started in an earlier epoch.
            self._packs, self._served = self._packs_of(Plan.open(path)), path
        return self._packs

    def _packs_of(self, plan: Plan) -> PackedDataset:
        return PackedDataset.from_plan(self._source, self._encoder, plan, transforms=self._transforms)

    def _of_main_process(self) -> SharedPlan:
        if self._shared is None:
            raise SettingsError(
                "this copy of the data set is in a worker: set_epoch belongs to the process that made it"
            )
        return self._shared

    def __getstate__(self) -> dict[str, Any]:
        # The receiver opens the plan by its path: arrays may be gigabytes, and threads belong to one process.
        state = {**self.__dict__, "_shared": None, "_packs": None, "_served": ""}
        if multiprocessing.context.get_spawning_popen() is None:
            # Shared memory can only be passed to a process that is being started; any other copy stays in its epoch.
            state["_current"] = _Fixed(self._current.value)
        return state

    def __repr__(self) -> str:
        return f"SharedPackedDataset({counted(len(self), 'pack')}, {short(self.plan_fingerprint)})"


class _Fixed:
    """A path that does not change any more."""

    def __init__(self, value: bytes) -> None:
        self.value = value
