"""Main function of a rank process."""

from __future__ import annotations

import datetime
import signal
import traceback
from typing import NoReturn

import torch
import torch.distributed as dist

from ncclscope.errors import LaboratoryError, NcclscopeError
from ncclscope.lab.assignment import Assignment
from ncclscope.lab.communicator import LabCommunicator
from ncclscope.lab.engine import Engine
from ncclscope.lab.progress import Phase, ProgressBoard, ProgressEntry
from ncclscope.lab.stream import CudaStream, HostStream, Stream
from ncclscope.launch.gpus import SHARED, device_of, enough
from ncclscope.tracing.tracer import Tracer

_TIMEOUT = datetime.timedelta(minutes=30)
"""Timeout of the process groups: long enough to examine a hang."""


def run_rank(argument: str, rank: int) -> int:
    """Run one rank, and return its exit status.

    A process whose collective fails does not end. On NCCL it would wait for ever, while gloo raises
    as soon as a connection is lost. The process sleeps with open connections, so that a hang looks
    the same on both, and one broken connection does not stop the other ranks.

    Args:
        argument: The assignment as JSON.
        rank: Own global rank.
    """
    assignment = Assignment.from_json(argument)
    board = ProgressBoard(assignment.board)
    progress = board.entry(rank)
    try:
        tracer = _open_tracer(assignment, rank)
        engine = _join(assignment, rank, tracer, progress)
        progress.enter(Phase.RUNNING)
        _run(engine, tracer, progress)
    except Exception as error:
        is_ours = isinstance(error, NcclscopeError)
        text = str(error) if is_ours else f"{type(error).__name__}: {error}"
        assignment.error_file(rank).write_text(f"{text.splitlines()[0]}\n")
        traceback.print_exc()
        return 1
    tracer.close()
    progress.enter(Phase.FINISHED)
    return 0


def _run(engine: Engine, tracer: Tracer, progress: ProgressEntry) -> None:
    try:
        engine.run()
    except RuntimeError as error:
        tracer.describe(last_error=f"{type(error).__name__}: {error}"[:500])
        traceback.print_exc()
        progress.enter(Phase.BROKEN)
        _stay()


def _open_tracer(assignment: Assignment, rank: int) -> Tracer:
    program = assignment.program
    dp_rank, tp_rank = program.place(rank)
    return Tracer(
        assignment.directory,
        rank=rank,
        world_size=program.world_size,
        labels={"tp": str(tp_rank), "dp": str(dp_rank)},
        capacity=assignment.capacity,
        details={
            "argv": ["ncclscope-lab", f"dp={dp_rank}", f"tp={tp_rank}"],
            "gpu": rank if program.backend == "nccl" else None,
        },
    )


def _join(assignment: Assignment, rank: int, tracer: Tracer, progress: ProgressEntry) -> Engine:
    """Join the process groups, and return the engine that uses them."""
    program = assignment.program
    device = _device(program.backend, program.world_size, rank)
    stream: Stream = (HostStream if device.type == "cpu" else CudaStream)(tracer, progress)
    dist.init_process_group(
        program.backend,
        init_method=assignment.rendezvous.as_uri(),
        rank=rank,
        world_size=program.world_size,
        timeout=_TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )

    def communicator(label: str, families: list[tuple[int, ...]]) -> LabCommunicator:
        """Create all groups of one kind, as each rank must, and return this rank's group."""
        own = next(ranks for ranks in families if rank in ranks)
        groups = {
            ranks: dist.new_group(list(ranks), timeout=_TIMEOUT)
            for ranks in families
            if len(ranks) > 1
        }
        return LabCommunicator(
            tracer,
            stream,
            progress,
            groups.get(own),
            label=label,
            ranks=own,
            rank=rank,
            nonce=assignment.nonce,
            backend=program.backend,
        )

    return Engine(
        program,
        rank,
        world=communicator("world", [tuple(range(program.world_size))]),
        tp=communicator("tp:0", [program.replica(index) for index in range(program.dp)]),
        dp=communicator("dp:0", [program.counterparts(index) for index in range(program.tp)]),
        stream=stream,
        tracer=tracer,
        progress=progress,
        device=device,
        healthy=program.planted_fault.usual(),
        planted=program.planted_fault,
    )


def _device(backend: str, ranks: int, rank: int) -> torch.device:
    torch.set_num_threads(1)
    if backend == "gloo":
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if not enough(found, ranks):
        raise LaboratoryError(
            f"{ranks} ranks on NCCL need as many GPUs, and this machine has {found}",
            f"give a smaller tp and dp, or the backend gloo; NCCL 2.31 and later share a GPU "
            f"where {SHARED}=1 is set",
        )
    device = torch.device("cuda", device_of(rank, found))
    torch.cuda.set_device(device)
    return device


def _stay() -> NoReturn:
    while True:
        signal.pause()
