"""Four ranks, two replicas of two, that exchange tokens through vLLM's own dispatcher.

    NCCLSCOPE_VLLM_CPU_MOE=1 ncclscope run --dir RINGS -- python dispatch_ranks.py --steps 1000

vLLM makes the groups, agrees on the batch sizes and decides what is posted. Made up are the
batches, the routing, which is as lopsided as can be, and experts that multiply by two.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TP, DP = 2, 2
RANKS = TP * DP
EXPERTS, TOP_K, HIDDEN = 8, 2, 16
PER_RANK = EXPERTS // RANKS

BATCHES = ((1, 1), (5, 5), (1, 5), (32, 1), (8, 8), (0, 3), (7, 0), (1, 16))
"""Tokens of each replica. A real engine runs a dummy batch of one token in place of none."""

ROUTINGS = ("one expert", "one rank", "the last expert", "all but one rank", "own experts")
"""Where tokens go. In each, there are ranks whose experts get no token at all."""

WRONG_RANK = 1
"""Which rank has a size of its own where a step is to go wrong."""


def experts_of(routing: str, step: int, rows: int, owner: torch.Tensor) -> torch.Tensor:
    """Route tokens.

    Args:
        routing: One of ``ROUTINGS``.
        step: Number of the step; the favoured or forsaken rank changes with it.
        rows: How many tokens.
        owner: Rank that each token comes from, ``[rows]``.

    Returns:
        Experts of each token, ``[rows, TOP_K]``.
    """
    turn, places = step % RANKS, torch.arange(rows * TOP_K).reshape(rows, TOP_K)
    if routing == "one expert":
        return torch.zeros_like(places)
    if routing == "one rank":
        return turn * PER_RANK + places % PER_RANK
    if routing == "the last expert":
        return torch.full_like(places, EXPERTS - 1)
    if routing == "all but one rank":
        chosen = places % (EXPERTS - PER_RANK)
        return chosen + PER_RANK * (chosen >= turn * PER_RANK)
    return owner[:, None] * PER_RANK + places % PER_RANK


class Worker:
    """One rank: what a vLLM worker does in a forward pass, as far as its collectives go.

    Args:
        rank: Global rank.
        config: vLLM's configuration.
    """

    def __init__(self, rank: int, config: Any) -> None:
        from vllm.distributed import parallel_state

        self.rank = rank
        self.replica = rank // TP
        self.config = config
        self.ep = parallel_state.get_ep_group()
        self.tp = parallel_state.get_tp_group()
        self.idle = 0
        self.layers = 0

    @property
    def manager(self) -> Any:
        """The dispatcher, a class of vLLM."""
        return self.ep.device_communicator.all2all_manager

    def step(self, number: int, wrong: bool) -> None:
        """Run two layers, as models with and without sequence parallelism have them.

        Args:
            number: Of the step, from 1.
            wrong: Whether this rank is to have an idea of its own of another rank's size.
        """
        from vllm.forward_context import get_forward_context, set_forward_context

        # Which routing meets which batch changes from round to round: their numbers are coprime.
        tokens = BATCHES[number % len(BATCHES)][self.replica]
        routing = ROUTINGS[number % len(ROUTINGS)]
        _stamp(number, tokens)
        # vLLM has the replicas agree on their sizes here, by an all_reduce.
        with set_forward_context(None, self.config, num_tokens=tokens):
            metadata = get_forward_context().dp_metadata
            with metadata.sp_local_sizes(1):
                self._replicated(number, routing, tokens)
            with metadata.sp_local_sizes(TP) as sizes:
                if wrong:
                    sizes[-1] += 1
                self._sequence_parallel(number, routing, sizes[self.rank])

    def _replicated(self, step: int, routing: str, rows: int) -> None:
        """A layer whose replica's ranks hold the same rows, as in MiniMax-M2: DP, then TP."""
        owner = torch.full((rows,), self.rank)
        ids = experts_of(routing, step, rows, owner)
        logits = torch.zeros(rows, EXPERTS).scatter_(1, ids, 1.0)
        hidden = torch.ones(rows, HIDDEN)
        hidden, logits = self.ep.dispatch_router_logits(hidden, logits, False)
        self._compute(logits.topk(TOP_K).indices)
        combined = self.ep.combine(2 * hidden, False)
        self.tp.all_reduce(combined if rows else torch.zeros(1, HIDDEN))

    def _sequence_parallel(self, step: int, routing: str, rows: int) -> None:
        """A layer whose ranks hold rows of their own, as in Qwen3-MoE: EP, then TP."""
        ids = experts_of(routing, step, rows, torch.full((rows,), self.rank))
        hidden, weights = torch.ones(rows, HIDDEN), torch.ones(rows, TOP_K)
        hidden, weights, ids = self.ep.dispatch(hidden, weights, ids, True)
        self._compute(ids)
        combined = self.ep.combine(2 * hidden, True)
        self.tp.all_gather(combined if rows else torch.zeros(1, HIDDEN), 0)

    def _compute(self, ids: torch.Tensor) -> None:
        """Count a layer, and whether any token came for an expert of this rank."""
        self.layers += 1
        self.idle += not bool((ids // PER_RANK == self.rank).any())


def _stamp(number: int, tokens: int) -> None:
    """Note in the ring which step the calls belong to."""
    from ncclscope.tracing import session

    tracer = session.current()
    if tracer is not None:
        tracer.step(number, tokens=tokens)


@contextmanager
def vllm_groups(rank: int, store: Path) -> Iterator[Any]:
    """Make the groups that vLLM's workers have; yields its configuration."""
    from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    replica, tp_rank = divmod(rank, TP)
    parallel = ParallelConfig(
        tensor_parallel_size=TP,
        data_parallel_size=DP,
        data_parallel_rank=replica,
        enable_expert_parallel=True,
        all2all_backend="allgather_reducescatter",
        is_moe_model=True,
    )
    # The members of a TP group know each other's shared memory by this name.
    os.environ["VLLM_DIST_IDENT"] = f"{store.parent.name}-{replica}"
    config = VllmConfig(parallel_config=parallel)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(TP, tp_rank, "env://", tp_rank, "gloo")
        parallel_state.initialize_model_parallel(TP, backend="gloo")
        yield config


def say(text: str) -> None:
    """Print a line in one piece, whatever the other ranks print."""
    os.write(sys.stdout.fileno(), f"{text}\n".encode())


def run(rank: int, store: Path, steps: int, wrong_step: int) -> None:
    """Take one rank through all steps."""
    torch.set_num_threads(1)
    with vllm_groups(rank, store) as config:
        worker = Worker(rank, config)
        if rank == 0:
            kind = type(worker.manager)
            say(f"dispatcher: {kind.__module__}.{kind.__qualname__}")
        for number in range(1, steps + 1):
            worker.step(number, wrong=(rank, number) == (WRONG_RANK, wrong_step))
        say(
            f"rank {rank}: {steps:,} steps; no token for its experts in {worker.idle:,} of "
            f"{worker.layers:,} layers"
        )


def fork(rank: int, *arguments: Any) -> int:
    """Start a rank; return its process id. vLLM has been imported by then, once for all."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        run(rank, *arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def remove_shared_memory(name: str) -> None:
    """Remove what vLLM's communicators leave behind."""
    for path in Path("/dev/shm").glob(f"{name}-*-cpushm_*"):
        path.unlink(missing_ok=True)


def main() -> int:
    """Run the ranks; the exit status is 0 where all of them came to their end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="default: 1000")
    parser.add_argument(
        "--wrong-step",
        type=int,
        default=0,
        metavar="N",
        help=f"in step N, rank {WRONG_RANK} takes another rank's size for one more than it is",
    )
    arguments = parser.parse_args()
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    current_platform.import_kernels()  # the shared-memory collectives of TP are among them
    with tempfile.TemporaryDirectory(prefix="case-43547-") as name:
        directory = Path(name)
        try:
            pids = [
                fork(rank, directory / "store", arguments.steps, arguments.wrong_step)
                for rank in range(RANKS)
            ]
            return int(any(os.waitpid(pid, 0)[1] for pid in pids))
        finally:
            remove_shared_memory(directory.name)


if __name__ == "__main__":
    sys.exit(main())
