"""Broadcast of a plan by a collective, for code that expects one: its file as byte tensors, never pickled lists."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.checks import check_type
from brimful.base.optional import optional
from brimful.base.wording import setting
from brimful.encode.encoder import Encoder
from brimful.errors import CorruptFileError, SettingsError
from brimful.plan import Plan
from brimful.serve.agreement import process_group
from brimful.shared.equal_arguments import arguments_of, check_arguments
from brimful.sources.source import Source

_CHUNK_BYTES = 64 << 20
"""Bytes of one broadcast: bounds the memory used in addition to the plan, on a GPU too."""


def broadcast_plan(
    plan: Plan | None, *, src: int = 0, group: Any = None, samples: tuple[Source, Encoder] | None = None
) -> Plan:
    """Send a plan from one rank to all others of a process group; a collective that every rank calls.

    The collective is open only while the plan is sent. Make the plan before the call: ranks that wait for it wait
    inside the collective, where the timeout of the group applies. ``shared_plan`` has no such limit.

    Args:
        plan: on ``src``; None elsewhere.
        src: global rank that has the plan.
        group: process group; the default one if None. gloo sends from memory, NCCL from the current GPU.
        samples: source and encoder of this rank, compared with the source and encoder of ``src``; not compared if None.

    Returns:
        The plan, checked against its fingerprint; on ``src`` the plan that was given.

    Raises:
        SettingsError: no process group, or ``src`` has no plan: then all ranks raise.
        CorruptFileError: the received plan is not the plan that was sent.
        PlanMismatchError: this rank has a different source or encoder from ``src``; names what differs, with both
            values.
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
        # The size is sent first, also without a plan: a rank that raised alone would leave the others in a collective.
        document = json.dumps(arguments).encode()
        num_bytes, document_bytes = send(torch.tensor([num_bytes, len(document)], dtype=torch.int64)).tolist()
        if num_bytes < 0:
            check_type("plan", plan, (Plan, type(None)), "a Plan")
            raise SettingsError(f"rank {src} has no {setting('plan')} to send")
        letters = torch.frombuffer(bytearray(document if is_source else document_bytes), dtype=torch.uint8)
        their_arguments = json.loads(send(letters).numpy().tobytes())
        if is_source:
            contents = np.memmap(path, dtype=np.uint8, mode="r")
            for start in range(0, num_bytes, _CHUNK_BYTES):
                send(torch.from_numpy(contents[start : start + _CHUNK_BYTES].copy()))
            assert plan is not None
            return plan
        with open(path, "wb") as file:
            for start in range(0, num_bytes, _CHUNK_BYTES):
                piece = torch.empty(min(_CHUNK_BYTES, num_bytes - start), dtype=torch.uint8)
                file.write(send(piece).numpy().data)
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
