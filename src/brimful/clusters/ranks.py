"""Ranks of a job: their numbers, the arguments that all of them must share, and a plan sent by a
collective.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from brimful.base.atomic_file import atomic_file
from brimful.base.checks import check_type, is_number, setting_number
from brimful.base.fingerprint import canonical_json, differing_keys, fingerprint_of, short
from brimful.base.locks import cache_dir, cached, exclusive
from brimful.base.optional import optional
from brimful.base.plain_files import read_plain
from brimful.base.typing import AnyPath, Fingerprint
from brimful.base.wording import setting
from brimful.encode.encoder import Encoder
from brimful.errors import CorruptFileError, PlanMismatchError, SettingsError
from brimful.plan import Plan, PlanSettings
from brimful.serve.process_group import process_group
from brimful.sources.source import Source
from brimful.sources.stamp import Stamp


@dataclass(frozen=True)
class Ranks:
    """One process of a job.

    Attributes:
        rank: number of this process, from 0.
        world_size: processes of the job, including tensor- and pipeline-parallel processes: all of
            them get the same plan.
        logs: true if this rank prints while it waits: one follower on each node does.
    """

    rank: int = 0
    world_size: int = 1
    logs: bool = True

    @property
    def is_builder(self) -> bool:
        """True for the one rank that plans."""
        return self.rank == 0


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Seconds that ranks wait for rank 0. They do not limit how long a build may take.

    Attributes:
        poll_seconds: time between two polls.
        arrive_seconds: delay by which rank 0 may arrive later than another rank.
        see_seconds: delay after the announcement of rank 0 until another rank must see the file of
            the plan.

    Raises:
        SettingsError: a time that is not positive.

    >>> Waiting(arrive_seconds=30).poll_seconds
    0.5
    """

    poll_seconds: float = 0.5
    arrive_seconds: float = 600.0
    see_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not is_number(value) or not value > 0:
                raise SettingsError(f"{setting(name, value)} must be a number of seconds above 0")


def find_ranks(rank: int | None = None, world_size: int | None = None) -> Ranks:
    """Return this process among the ranks: from the arguments, PyTorch or the launcher; otherwise
    it is the only one.

    ``torch.distributed`` is asked if it was initialized; it is never imported for this. ``RANK``
    and ``WORLD_SIZE`` of torchrun and similar launchers are used if data sets are made before the
    process group.

    Raises:
        SettingsError: one argument without the other, or a rank outside the world size.

    >>> find_ranks(rank=1, world_size=4)
    Ranks(rank=1, world_size=4, logs=True)
    """
    if (rank is None) != (world_size is None):
        raise SettingsError(
            f"{setting('rank')} and {setting('world_size')} go together: give both, or neither"
        )
    if rank is None or world_size is None:
        distributed = process_group()
        if distributed is not None:
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            try:
                rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            except (KeyError, ValueError):  # not started by a launcher
                rank, world_size = 0, 1
    world_size = setting_number("world_size", world_size, minimum=1)
    rank = setting_number("rank", rank, minimum=0, maximum=world_size - 1)
    # This variable only decides whether a line is printed.
    return Ranks(rank, world_size, logs=rank == 0 or os.environ.get("LOCAL_RANK", "0") == "0")


Arguments: TypeAlias = Mapping[str, str]
"""Named strings that decide the tokens of packs, long ones as fingerprints; and ``title``, which
may differ.
"""

_LONGEST_SHOWN = 40


def arguments_of(
    source: Source,
    encoder: Encoder,
    settings: PlanSettings | None = None,
    cache: AnyPath | None = None,
) -> Arguments:
    """Return the arguments of this rank.

    >>> from brimful import open_source
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> source = open_source([{"prompt": "1+1?", "completion": "2"}])
    >>> arguments_of(source, toy_chat_encoder(), PlanSettings(capacity=64))["capacity"]
    '64'
    """
    values = {
        f"encoder {name}": value
        for name, value in (encoder.length_settings | encoder.label_settings).items()
    }
    if settings is not None:
        values |= settings.as_dict()
    arguments = {"title": source.title, "source": kept_fingerprint(source, cache)}
    for name, value in values.items():
        text = value if isinstance(value, str) else canonical_json(value).decode()
        arguments[name] = text if len(text) <= _LONGEST_SHOWN else fingerprint_of(text)
    return arguments


def kept_fingerprint(source: Source, cache: AnyPath | None = None) -> Fingerprint:
    """Return the fingerprint of a source; only one of the processes that share a cache reads the
    bytes of its files.

    It is kept until the files change. Rows outside files, such as rows in memory, are read by each
    process.
    """
    members = source.rows.members
    if not source.rows.lies_in_files or not all(map(os.path.exists, dict(members))):
        return source.fingerprint
    stamps = []
    for title, _ in members:
        files = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(title)
            for name in sorted(names)
        ]
        # Taken before the bytes are read; the reader refuses a file that changes in the meantime.
        stamps += [[os.path.abspath(path), repr(Stamp.of(path))] for path in files or [title]]
    path = cached(
        cache_dir(cache)
        / "fingerprints"
        / fingerprint_of([members, source.unit, source.row_settings, stamps])
    )
    with exclusive(path):
        if not path.exists():
            with atomic_file(path) as file:
                file.write(source.fingerprint.encode())
        return read_plain(path).decode()


def check_arguments(theirs: Arguments, own: Arguments, rank: int, their_rank: int = 0) -> None:
    """Refuse a rank whose tokens would differ from the planned tokens.

    Raises:
        PlanMismatchError: names each argument that differs, with both values.
    """
    differences = [
        f"{name} ({_shown(theirs, name)} on rank {their_rank}, {_shown(own, name)} here)"
        for name in differing_keys(theirs, own)
        if name != "title"
    ]
    if differences:
        raise PlanMismatchError(
            f"rank {rank} has different arguments from rank {their_rank}, which made the plan: "
            f"{', '.join(differences)}"
        )


def _shown(arguments: Arguments, name: str) -> str:
    value = arguments.get(name, "not given")
    return f"{arguments['title']} {short(value)}" if name == "source" else value


_CHUNK_BYTES = 64 << 20
"""Bytes of one broadcast: bounds the memory used in addition to the plan, on a GPU too."""


def broadcast_plan(
    plan: Plan | None,
    *,
    src: int = 0,
    group: Any = None,
    samples: tuple[Source, Encoder] | None = None,
) -> Plan:
    """Send a plan from one rank to all others of a process group; a collective that every rank
    calls.

    The collective is open only while the plan is sent. Make the plan before the call: ranks that
    wait for it wait inside the collective, where the timeout of the group applies. ``shared_plan``
    has no such limit.

    Args:
        plan: on ``src``; None elsewhere.
        src: global rank that has the plan.
        group: process group; the default one if None. gloo sends from memory, NCCL from the current
            GPU.
        samples: source and encoder of this rank, compared with the source and encoder of ``src``;
            not compared if None.

    Returns:
        The plan, checked against its fingerprint; on ``src`` the plan that was given.

    Raises:
        SettingsError: no process group, or ``src`` has no plan: then all ranks raise.
        CorruptFileError: the received plan is not the plan that was sent.
        PlanMismatchError: this rank has a different source or encoder from ``src``; names what
            differs, with both values.
    """
    distributed = process_group()
    if distributed is None:
        raise SettingsError("broadcast_plan needs torch.distributed.init_process_group before it")
    with optional("torch", "torch", "broadcast_plan"):
        import torch

    arguments = {} if samples is None else arguments_of(*samples)
    is_source = distributed.get_rank() == src
    device = "cuda" if "nccl" in str(distributed.get_backend(group)) else "cpu"

    def send(tensor: Any) -> Any:
        tensor = tensor.to(device)
        distributed.broadcast(tensor, src=src, group=group)
        return tensor.cpu()

    with tempfile.TemporaryDirectory(prefix="brimful-") as folder:
        path = Path(folder) / "plan.arrow"
        num_bytes = -1
        if is_source and isinstance(plan, Plan):
            own_path = plan.path
            plan.save(path)
            plan.path = own_path  # the copy in the folder is only for sending
            num_bytes = path.stat().st_size
        # The size is sent first, also without a plan: a rank that raised alone would leave the
        # others in a collective.
        document = json.dumps(arguments).encode()
        num_bytes, document_bytes = send(
            torch.tensor([num_bytes, len(document)], dtype=torch.int64)
        ).tolist()
        if num_bytes < 0:
            check_type("plan", plan, (Plan, type(None)), "a Plan")
            raise SettingsError(f"rank {src} has no {setting('plan')} to send")
        letters = torch.frombuffer(
            bytearray(document if is_source else document_bytes), dtype=torch.uint8
        )
        their_arguments = json.loads(send(letters).numpy().tobytes())
        contents = np.memmap(
            path, dtype=np.uint8, mode="r+" if is_source else "w+", shape=num_bytes
        )
        for start in range(0, num_bytes, _CHUNK_BYTES):
            chunk = slice(start, start + _CHUNK_BYTES)
            contents[chunk] = send(torch.from_numpy(contents[chunk].copy())).numpy()
        contents.flush()
        if is_source:
            assert plan is not None
            return plan
        received_plan = Plan.open(path)
        # Mapped before the folder is removed: on POSIX the mapping keeps the bytes.
        try:
            received_plan.check_fingerprint()
        except CorruptFileError as error:
            raise CorruptFileError(f"the plan that rank {src} sent arrived damaged") from error
        received_plan.path = None
        if their_arguments and arguments:
            check_arguments(their_arguments, arguments, distributed.get_rank(), src)
        return received_plan
