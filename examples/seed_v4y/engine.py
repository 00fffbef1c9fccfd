"""pynccl calls of eight vLLM workers, recorded by the real tracer.

The collectives of MiniMax-M2 with ``-tp 4 -dp 2 --enable-expert-parallel``, without tensors. A
worker's step is a generator that yields after each posted collective, so that eight workers advance
side by side and each can stop at any call.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

from schedule import Batch, batches

from ncclscope import Tracer

LAYERS, HIDDEN, EXPERTS = 62, 3072, 256
"""From MiniMax-M2's configuration."""
TP = 4
NODES = ("node-1", "node-15")
PIDS = (
    (2529073, 2529071, 2529070, 2529072),
    (3408432, 3408433, 3408431, 3408430),
)
"""By node and TP rank, as in seed 003."""

CAPACITY = 1 << 16
CUSTOM_LIMIT = 8 << 20
ITEM_SIZE = {"bfloat16": 2, "float32": 4}

POSTED_CALLS = (129, 72)
"""Calls of the unfinished step that the workers of each node have posted when they are killed:
21 layers and the attention of the next; 18 layers. A host posts on while its GPU waits, until
there is no room left for more launches."""
STRAY_LAYERS = range(1, LAYERS)
"""Layers of the unfinished step in which the diverging rank takes the wrong communicator."""


@dataclass(frozen=True)
class Story:
    """How a run ends.

    Attributes:
        diverging: Rank that leaves the common sequence.
        behind: By rank: the calls it is short of what its peers have posted of the last step.
        absent: By rank: the last steps of which it has posted nothing at all.
    """

    diverging: int | None = None
    behind: dict[int, int] = field(default_factory=dict)
    absent: dict[int, int] = field(default_factory=dict)

    def calls(self, worker: Worker, steps_left: int) -> int | None:
        """Return how many calls of a step the worker gets to post; None for all of them."""
        if steps_left < self.absent.get(worker.rank, 0):
            return 0
        if steps_left:
            return None
        return POSTED_CALLS[worker.node] - self.behind.get(worker.rank, 0)


STORIES = {
    # Rank 6 is pid 3408431. Rank 2, pid 2529070, is its partner on DP, and merely late.
    "diverged": Story(diverging=6, behind={2: 1}),
    # The same counts in all windows, and nothing has diverged: rank 6 is late as well.
    "late": Story(behind={2: 1}, absent={6: 2}),
}


def custom_takes(tokens: int, width: int, dtype: str) -> bool:
    """Return whether vLLM's custom all-reduce takes a tensor, so that pynccl never sees it."""
    size = tokens * width * ITEM_SIZE[dtype]
    return size % 16 == 0 and size < CUSTOM_LIMIT


def unique(name: str) -> str:
    """Return a placeholder for the digest of the ncclUniqueId of a communicator."""
    return blake2b(f"seed_v4y {name}".encode(), digest_size=16).hexdigest()


class Worker:
    """One rank, as far as it posts collectives.

    Args:
        directory: Where its ring goes.
        node: Its DP rank; each node runs one replica.
        tp_rank: Its rank in the replica.
    """

    def __init__(self, directory: str, node: int, tp_rank: int) -> None:
        self.node = node
        self.rank = node * TP + tp_rank
        self.tracer = Tracer(
            directory,
            rank=self.rank,
            world_size=TP * len(NODES),
            labels={"tp": str(tp_rank), "dp": str(node)},
            capacity=CAPACITY,
            heartbeat=False,
            details={"host": NODES[node], "pid": PIDS[node][tp_rank], "gpu": tp_rank},
        )
        self.tp = self.tracer.communicator(
            key=unique(f"tp of node {node}"),
            label="tp:0",
            ranks=range(node * TP, node * TP + TP),
            backend="nccl",
        )
        self.dp = self.tracer.communicator(
            key=unique(f"dp of tp rank {tp_rank}"),
            label="dp:0",
            ranks=range(tp_rank, TP * len(NODES), TP),
            backend="nccl",
        )
        self.tokens = 0

    def step(self, number: int, batch: Batch, strays: Sequence[int] = ()) -> Iterator[None]:
        """One forward pass.

        Args:
            number: Of the step.
            batch: Tokens of both nodes.
            strays: Layers in which it gathers on TP what belongs on DP.
        """
        before, self.tokens = self.tokens, batch[self.node]
        self.tracer.step(number, tokens=self.tokens)
        yield from self.sum_hidden()  # the vocabulary is sharded
        for layer in range(LAYERS):
            yield from self.norm()
            yield from self.sum_hidden()  # the heads are sharded
            yield from self.experts(batch, before if layer in strays else None)
            yield from self.sum_hidden()  # so are the experts

    def norm(self) -> Iterator[None]:
        """Q and K are normalised over the heads of all ranks: two variances for each token."""
        tokens = self.tokens
        if custom_takes(tokens, 2, "float32"):
            return
        self.tracer.record(self.tp, "all_reduce", shape=(tokens, 2), dtype="float32", redop="sum")
        yield

    def sum_hidden(self) -> Iterator[None]:
        """The partial sums of the hidden states."""
        shape = (self.tokens, HIDDEN)
        if custom_takes(*shape, "bfloat16"):
            return
        self.tracer.record(self.tp, "all_reduce", shape=shape, dtype="bfloat16", redop="sum")
        yield

    def experts(self, batch: Batch, stray: int | None) -> Iterator[None]:
        """Dispatch and combine, as vLLM's AgRsAll2AllManager does them.

        Args:
            batch: Tokens of both nodes.
            stray: Rows of router logits to be gathered on TP; None for the regular gather.
        """
        sizes = None if len(set(batch)) == 1 else batch
        gather, scatter = ("all_gather", "reduce_scatter")
        if sizes:
            gather, scatter = ("all_gatherv", "reduce_scatterv")
        record, dp, tokens = self.tracer.record, self.dp, self.tokens
        record(dp, gather, shape=(tokens, HIDDEN), dtype="bfloat16", sizes=sizes)
        yield
        if stray is None:
            record(dp, gather, shape=(tokens, EXPERTS), dtype="float32", sizes=sizes)
        else:
            rows = (stray, EXPERTS)
            record(self.tp, "all_gatherv", shape=rows, dtype="float32", sizes=[stray] * TP)
        yield
        shape = (sum(batch), HIDDEN)
        record(dp, scatter, shape=shape, dtype="bfloat16", redop="sum", sizes=sizes)
        yield


def run(directory: str, story: Story) -> None:
    """Advance all workers through all steps, up to the last calls of the story."""
    workers = [Worker(directory, node, rank) for node in range(len(NODES)) for rank in range(TP)]
    schedule = batches()
    for number, batch in enumerate(schedule):
        left = len(schedule) - 1 - number
        passes = []
        for worker in workers:
            stray = left == 0 and worker.rank == story.diverging
            calls = worker.step(number, batch, STRAY_LAYERS if stray else ())
            passes.append(islice(calls, story.calls(worker, left)))
        advance(passes)


def advance(passes: Sequence[Iterator[None]]) -> None:
    """Let each worker post one call in turn, until none has any left."""
    done = object()
    while passes:
        passes = [calls for calls in passes if next(calls, done) is not done]


if __name__ == "__main__":
    run(sys.argv[1], STORIES[sys.argv[2]])
    # A job that hangs is killed: nothing is flushed, and nobody says goodbye.
    os.kill(os.getpid(), signal.SIGKILL)
