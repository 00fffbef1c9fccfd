"""What each rank of a soak does, traced like any other program."""

from __future__ import annotations

import os

import torch

from ncclscope.tracing import session
from ncclscope_patches.moe_dispatch import (
    ExpertGroups,
    LocalExperts,
    MoEDispatcher,
    sequence_chunk,
)
from tests.soak.routing import Plan

_SAY_EVERY = 2000


def run(rank: int, plan: Plan, terminal: int) -> int:
    """Run all steps.

    Args:
        rank: This one.
        plan: What is run.
        terminal: Descriptor for progress messages; -1 for none.

    Returns:
        How many layers had a wrong result.
    """
    program = plan.program
    replica, tp_rank = program.place(rank)
    groups = ExpertGroups.create(tp=program.tp, sequence_parallel=plan.sequence_parallel)
    dispatcher = MoEDispatcher(groups, plan.placement, strategy=plan.strategy, verify=plan.verify)
    experts = LocalExperts(dispatcher.owned, lambda number, rows, extra: rows * (number % 4 + 1))
    wrong = 0
    for number in range(1, program.steps + 1):
        step = plan.step(number)
        rows = step.rows[replica]
        own = (
            sequence_chunk(rows, program.tp, tp_rank) if plan.sequence_parallel else slice(0, rows)
        )
        tracer = session.current()
        if tracer is not None:
            tracer.step(number, tokens=rows, dummy=rows == 0)

        sizes = dispatcher.agree(own.stop - own.start)
        # Every token has a value of its own, so that a mixed up row is a wrong one.
        values = torch.arange(1.0, rows + 1) + 64 * replica
        hidden = groups.tensor.sum(values.unsqueeze(1).repeat(1, program.hidden)) / program.tp
        for layer in step.ids:
            ids = torch.tensor(layer[replica], dtype=torch.int64).reshape(rows, 1)
            expected = (hidden * (ids % 4 + 1))[own]
            weights = torch.ones(own.stop - own.start, 1)
            found = dispatcher.apply(hidden[own], weights, ids[own], sizes, experts)
            wrong += not torch.equal(found, expected)
        if terminal >= 0 and rank == 0 and number % _SAY_EVERY == 0:
            os.write(terminal, f"step {number:,}\n".encode())
    return wrong
