"""What is wrong in each program: written before any tool was run on it.

A program takes the rank that makes its mistake from the variable ``BAD``; without it the program
is healthy. Lines that a right answer may name end in ``# bad``: that of a call that differs, one
from which it is reached, and the reason for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.corpus.runner.truth import Program

__all__ = ["FOLDER", "MISTAKES", "Mistake"]

FOLDER = Path(__file__).with_name("programs")
_MARK = "# bad"
_SKIPPED = ("missing_call", "not_joined")
_TRANSFERS = ("p2p_mismatch", *_SKIPPED)


@dataclass(frozen=True)
class Mistake:
    """The mistake of one program.

    Attributes:
        name: The program's file, without ``.py``.
        what: What the faulty rank does.
        where: The calls that differ, counted by steps of the program.
        kinds: The kinds of finding that describe the mistake.
        operations: What the call that differs may be called, or begin with.
        most: The highest confidence with which the rank may be named.
        busy: Whether the faulty rank computes while its peers wait.
        needs_gpu: Whether it cannot run over gloo.
    """

    name: str
    what: str
    where: str
    kinds: tuple[str, ...]
    operations: tuple[str, ...]
    most: str = "certain"
    busy: bool = False
    needs_gpu: bool = False

    @property
    def lines(self) -> frozenset[int]:
        """Lines of the program that a right answer may name."""
        text = (FOLDER / f"{self.name}.py").read_text().splitlines()
        return frozenset(number for number, line in enumerate(text, 1) if _MARK in line)

    def program(self, bad: int | None) -> Program:
        """Return the truth for a faulty rank, or for a healthy run."""
        return Program(
            self.name,
            "torch",
            self.what,
            ranks=() if bad is None else (bad,),
            kinds=self.kinds,
            most=self.most,
            busy=(bad,) if self.busy and bad is not None else (),
            hangs=bad is not None,
            folder="../gpu/one_gpu/programs",
            chooses_backend=True,
        )


_TABLE = [
    Mistake(
        "compiled_step", "leaves out one compiled step, of an all_reduce and an all_gather",
        "world, the round of one step; the records do not show which",
        _SKIPPED, ("all_reduce", "all_gather"),
    ),
    Mistake(
        "oom_skipped", "catches an out-of-memory error before a backward, and leaves it out",
        "world, the buckets of step 6 or 7",
        _SKIPPED, ("all_reduce",),
    ),
    Mistake(
        "graph_shorter", "has captured three all_reduces instead of four in its graph",
        "world, the second all_reduce of the first replay",
        ("capture_mismatch", "missing_call"), ("all_reduce",), needs_gpu=True,
    ),
    Mistake(
        "metrics_thread", "lost the thread that sums the metrics by an exception",
        "the gloo group, its seventh all_reduce",
        _SKIPPED, ("all_reduce",),
    ),
    Mistake(
        "threads_swapped", "posts one broadcast on the group of its other thread",
        "the loader's group lacks a broadcast, the trainer's has one more",
        ("comm_swap",), ("broadcast",),
    ),
    Mistake(
        "no_sync_once", "runs one backward under no_sync that its peers reduce",
        "world, the buckets of batch 13 or 15",
        _SKIPPED, ("all_reduce",),
    ),
    Mistake(
        "fsdp_sample", "runs one forward more, of its own",
        "world, the all_gathers after step 6",
        ("extra_call",), ("all_gather",),
    ),
    Mistake(
        "tensor_parallel_stop", "leaves the decoding loop one token early",
        "the mesh's group, the last all_reduce of the second text",
        _SKIPPED, ("all_reduce",),
    ),
    Mistake(
        "zero_update_skipped", "skips one update, and the two all_gathers of its parameters",
        "world, the all_gathers of step 6",
        _SKIPPED, ("all_gather",),
    ),
    Mistake(
        "pipeline_microbatch", "has two microbatches instead of three in one step",
        "the transfers of step 6 between it and its neighbours",
        _TRANSFERS, ("send", "recv"),
    ),
    Mistake(
        "ring_hops", "makes one hop of three fewer in one layer",
        "the transfers of layer 6 between it and its neighbours",
        _TRANSFERS, ("send", "recv", "isend", "irecv", "batch", "coalesced"),
    ),
    Mistake(
        "moe_stale_splits", "sends by the counts of the step before",
        "world, the second all_to_all of step 6",
        ("split_mismatch",), ("all_to_all",),
    ),
    Mistake(
        "graph_replay_skipped", "leaves out one replay of its graph",
        "world, the replay of step 6 or 7",
        (*_SKIPPED, "capture_mismatch"), ("all_reduce", "all_gather"), needs_gpu=True,
    ),
    Mistake(
        "mesh_layer_skipped", "leaves out the second all_reduce of one step on its shard group",
        "the shard group, the larger all_reduce of step 6",
        _SKIPPED, ("all_reduce",),
    ),
    Mistake(
        "opposite_order", "uses two groups in the opposite order in one step",
        "both groups, the calls of step 6",
        ("order_cycle",), ("all_reduce", "all_gather"),
    ),
    Mistake(
        "prefetch_twice", "gathers the first layer twice in one step",
        "the prefetcher's group, the second all_gather of step 6",
        ("extra_call",), ("all_gather",),
    ),
    Mistake(
        "coalesced_frozen", "reduces two gradients together where its peers reduce three",
        "world, the all_reduces that step 6 posts together",
        (*_SKIPPED, "size_mismatch"), ("all_reduce", "allreduce"),
    ),
    Mistake(
        "early_stop", "leaves the training after step 6 and waits in the broadcast behind it",
        "world, the gradients of step 7",
        _SKIPPED, ("all_reduce",),
    ),
    Mistake(
        "group_not_made", "does not make the group that its peers make in step 6",
        "the store of the new group; no call differs before",
        ("init_stalled", *_SKIPPED), ("new_group", "init", "store", "barrier"),
    ),
    Mistake(
        "barrier_in_branch", "leaves out the barrier of one checkpoint",
        "world, the barrier of step 7",
        _SKIPPED, ("barrier",),
    ),
    Mistake(
        "tokenizer_busy", "works on the host for minutes before the calls of one step",
        "world, the gradients of step 6",
        ("late",), ("all_reduce",), most="likely", busy=True,
    ),
    Mistake(
        "exception_raised", "ends by an exception between two calls of one step",
        "world, the losses of step 6",
        ("dead_rank", "not_joined"), ("all_reduce",),
    ),
    Mistake(
        "item_decides", "sums a norm because of its own loss, its peers do not",
        "world, the norm of step 6",
        ("extra_call",), ("all_reduce",),
    ),
    Mistake(
        "objects_cached", "leaves out one broadcast of objects",
        "world, the two broadcasts of epoch 6",
        _SKIPPED, ("broadcast",),
    ),
]  # fmt: skip

MISTAKES = {mistake.name: mistake for mistake in _TABLE}
