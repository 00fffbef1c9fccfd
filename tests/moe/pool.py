"""Ranks that wait for examples: real processes with real gloo, started once for many of them."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ncclscope.errors import NcclscopeError
from ncclscope_patches.moe_dispatch import (
    ExpertGroups,
    ExpertPlacement,
    LocalExperts,
    MoEDispatcher,
    sequence_chunk,
)
from tests.moe.case import LAYOUTS, RANKS, Case, Layout
from tests.moe.reference import EXPERTS

SECONDS = 30.0
"""After which a rank that does not answer counts as hung."""

Task = Callable[..., Any]


class Ranks:
    """The processes.

    Args:
        pipes: One to each.
    """

    def __init__(self, pipes: list[Connection]) -> None:
        self.pipes = pipes

    def run(self, task: Task, *arguments: Any) -> list[Any]:
        """Call ``task(rank, *arguments)`` on all ranks; return what each returned or raised.

        Raises:
            AssertionError: A rank does not answer.
        """
        for pipe in self.pipes:
            pipe.send((task, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(SECONDS), f"rank {rank} hangs"
            answers.append(pipe.recv())
        return answers


@contextmanager
def started(directory: Path) -> Iterator[Ranks]:
    """Fork the ranks, which join one process group; end them in the end."""
    context = multiprocessing.get_context("fork")
    ours, processes = [], []
    for rank in range(RANKS):
        own, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(rank, theirs, directory / "store"), daemon=True
        )
        with warnings.catch_warnings():
            # Of threads that do not come along. The child starts its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        ours.append(own)
        processes.append(process)
    try:
        yield Ranks(ours)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _serve(rank: int, pipe: Connection, store: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    for layout in LAYOUTS:
        groups_of(layout)
    while True:
        task, arguments = pipe.recv()
        try:
            answer = task(rank, *arguments)
        except (NcclscopeError, RuntimeError) as error:
            answer = error
        pipe.send(answer)


@cache
def groups_of(layout: Layout) -> ExpertGroups:
    """Return the groups of a layout, on the rank that this process is."""
    return ExpertGroups.create(tp=layout.tp, sequence_parallel=layout.sequence_parallel)


def layer_on_rank(rank: int, case: Case, device: str = "cpu") -> tuple[list[list[float]], bool]:
    """Run one layer.

    Args:
        rank: This one.
        case: What is run.
        device: Where its tensors are.

    Returns:
        The rank's rows of the result, those of its whole replica where each rank of it has
        its own, and whether the whole sequence was posted.
    """
    layout, layer = case.layout, case.layer
    replica, tp_rank = divmod(rank, layout.tp)
    groups = groups_of(layout)
    dispatcher = MoEDispatcher(
        groups,
        ExpertPlacement(EXPERTS, layout.ranks),
        strategy=case.strategy,
        verify=case.verify,
    )
    own = case.batches[replica].to(device)
    part, parts = (tp_rank, layout.tp)
    if layout.sequence_parallel:
        own = own.rows(sequence_chunk(len(own.hidden), layout.tp, tp_rank))
        part, parts = 0, 1
    sizes = dispatcher.agree(len(own.hidden))
    sent = dispatcher.dispatch(own.hidden, own.weights, own.ids, sizes, own.extra)
    output = LocalExperts(dispatcher.owned, layer.expert)(sent)
    shared = layer.shared(own.hidden, part, parts) if case.shared else None
    result = dispatcher.combine(sent, output, shared)
    assert result.dtype == layer.dtype
    return dispatcher.join_sequence(result, sizes).tolist(), sent.full
