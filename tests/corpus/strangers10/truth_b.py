"""What is wrong in twenty programs of this folder: written before any tool was run on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.corpus.runner.truth import (
    ABSENT,
    ALONE,
    HALT,
    ORDER,
    PIPELINE,
    UNTRACED,
    Program,
)

__all__ = ["PROGRAMS", "STORIES", "TABLE"]

_ALL = (0, 1, 2, 3)
_FIVE = (*_ALL, 4)
_SIX = (*_FIVE, 5)
_EIGHT = (*_SIX, 6, 7)

TABLE = [
    # Collectives of engines and trainers
    Program(
        "hicache_writing_check", "torch",
        "rank 2 has no copy of a block under way, its host memory being full, and leaves out the "
        "all_reduce by which ranks agree which copies are done",
        (2,), (*ABSENT, *ORDER),
    ),
    Program(
        "ep_mode_auto", "torch",
        "rank 5 has no rows and dispatches in the mode for decoding, its group in the one for "
        "prompts: all_to_all instead of all_gather",
        # Stacks: 0 to 2 are in the sum of all, 3 and 4 in all_gather; they show no groups.
        (5,), (*ALONE, *ABSENT, *ORDER), undecided_untraced=_SIX, unknown_in=(UNTRACED,),
        world=6,
    ),
    Program(
        "admin_request_routed", "torch",
        "a command that is meant for all replicas is routed to the one of ranks 2 and 3, which "
        "enter a barrier, their peers an all_reduce",
        # Stacks: two of six in a barrier, whose group they do not show.
        (2, 3), (*ALONE, *ORDER), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "ulysses_heads_kernel", "torch",
        "rank 1 falls back to another kernel, and divides 12 heads as 3, 3, 3, 3 where its peers "
        "divide them as 4, 4, 2, 2; gloo aborts",
        (1,), ("split_mismatch", "size_mismatch"), ends=True,
    ),
    Program(
        "dynamic_micro_batches", "torch",
        "rank 0 divides a microbatch after all have agreed how many there are, and makes one "
        "forward and backward pass more",
        (0,), (*ALONE, *ORDER), world=3,
    ),
    # Point to point
    Program(
        "halo_local_steps", "torch",
        "rank 2 refines its block before the next regrid, and exchanges edges twice with both "
        "neighbours, who do so once",
        (2,), (*PIPELINE, "extra_call", "op_mismatch"), world=5,
    ),
    Program(
        "ring_two_ways", "torch",
        "rank 4 sends both blocks to the right, its peers one each way",
        # Stacks: all wait in the same line.
        (4,), (*PIPELINE, "extra_call", "order_cycle", "stalled"), undecided_untraced=_FIVE,
        unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "pp_tokens_return", "torch",
        "rank 3 drops a batch of a request that has stopped, and sends rank 0 no token for it",
        # Rank 0 may have asked for a batch too many: the two alone differ about it.
        (3,), (*PIPELINE, "order_cycle", "stalled"), undecided=(0, 3),
        undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "ep_tokens_dropped", "torch",
        "rank 1 announces rows to ranks 3 and 4, and drops them before it sends them",
        # Stacks: 0 to 2 are in the all_reduce, 3 and 4 wait for a message of somebody.
        (1,), PIPELINE, undecided_untraced=_FIVE, unknown_in=(UNTRACED,), world=5,
    ),
    # Calls of threads
    Program(
        "dual_batch_yield", "torch",
        "the second thread of rank 3 does not hand over, its half being short, and makes the "
        "calls of several layers in a row",
        (3,), (*ORDER, *ABSENT, *ALONE),
    ),
    Program(
        "executor_call_cancelled", "torch",
        "an all_gather of rank 0 is cancelled while it waits for its thread, which is writing",
        (0,), (*ABSENT, *ORDER),
    ),
    Program(
        "lazy_group_first_use", "torch",
        "two threads of rank 4 make their groups in the opposite order, its index being slow",
        # Stacks: each rank is in the same two calls.
        (4,), (*ABSENT, *ORDER, "init_stalled"), undecided_untraced=_FIVE,
        unknown_in=(UNTRACED,), world=5,
    ),
    # Waits outside of collectives
    Program(
        "stream_client_gone", "torch",
        "rank 0 waits for room in the asyncio queue of a client that has gone",
        (0,), (*HALT, "missing_call"),
    ),
    Program(
        "child_inherits_pipe", "torch",
        "rank 3 waits for a child that reads a pipe to its end, of which a second child holds "
        "the other end",
        (3,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "sockets_both_sendall", "torch",
        "ranks 1 and 2 send each other more than their sockets hold, and both send first",
        (1, 2), (*HALT, "missing_call"), world=5,
    ),
    # Two faults
    Program(
        "two_adapter_and_buffers", "torch",
        "two faults: rank 1 leaves out the all_reduce of an adapter whose part is zero; rank 5 "
        "waits for a third block, which its thread has no buffer for",
        (1, 5), (*ABSENT, *ORDER, *HALT), world=6,
    ),
    Program(
        "two_hop_and_flock", "torch",
        "two faults: rank 0 makes one hop of a ring fewer; rank 7 waits for a lock that it holds "
        "itself by another file",
        # Stacks: 0 and 2 are in an all_reduce, 1 and 3 wait for messages: the ring is a square.
        (0, 7), (*PIPELINE, *HALT, *ORDER), undecided_untraced=_EIGHT, unknown_in=(UNTRACED,),
        world=8,
    ),
    # Healthy
    Program(
        "healthy_asyncio_tools", "torch",
        "nothing: pairs generate unequal numbers of tokens in threads, and one rank waits 11 to "
        "15 s for a tool",
        hangs=False,
    ),
    Program(
        "healthy_posted_ahead", "torch",
        "nothing: receives are posted a phase ahead, and one block works for 11 s in each phase",
        hangs=False, world=5,
    ),
    Program(
        "healthy_standby_takes_over", "torch",
        "nothing: rank 4 waits 20 s for the weights of rank 2, which then leaves; others go on",
        hangs=False, world=5,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers10/programs") for program in TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "hicache_writing_check": {
        "group": "control (0-3)", "op": "all_reduce MIN", "calls": -1, "step": 15,
        "branch": "if not self.ongoing:", "call": "dist.all_gather(out, part)",
        "story": "Rank 2 returns from the check of step 15 without a call and gathers the logits "
        "of step 16; its peers wait for it in the all_reduce of the control group.",
    },
    "ep_mode_auto": {
        "group": "second (3-5)", "op": "all_to_all instead of all_gather", "calls": "+1; -1",
        "step": 7, "branch": "if prompt + decoding == 0:",
        "call": "dist.all_to_all_single(out, padded, group=self.group)",
        "story": "Rank 5 is in the all_to_all of padded rows, ranks 3 and 4 in the all_gather of "
        "counts; ranks 0 to 2 wait for them in the all_reduce of all.",
    },
    "admin_request_routed": {
        "group": "world", "op": "barrier", "calls": "+1 each", "step": 8,
        "branch": "if message.session:", "call": "dist.barrier()",
        "story": "The replica of ranks 2 and 3 alone is asked to flush, and enters a second "
        "barrier; the others wait in the all_reduce of loads.",
    },
    "ulysses_heads_kernel": {
        "group": "world", "op": "all_to_all, 3 heads to each instead of 4, 4, 2, 2", "calls": 0,
        "step": 5, "branch": "next(kernel for kernel in self.kernels if kernel.fits(rows))",
        "call": "dist.all_to_all_single(out, hidden, [mine] * self.world, parts)",
        "story": "Rank 1 takes the plain kernel for 12 rows and divides the heads evenly; all "
        "others send it 4 heads where it expects 3, and expect 4 or 2 of it.",
    },
    "dynamic_micro_batches": {
        "group": "world (mesh)", "op": "all_gather (and what follows it in a microbatch)",
        "calls": "+1 microbatch", "step": 4,
        "branch": "if sum(part) <= LIMIT or len(part) == 1:", "call": "loss = model(...)",
        "story": "Rank 0 begins a fifth microbatch and waits in the all_gather of its parameters; "
        "ranks 1 and 2 have made four and wait in the all_reduce after the update.",
    },
    "halo_local_steps": {
        "group": "world", "op": "send and recv with 1 and 3", "calls": "+1 each", "step": 5,
        "branch": "if error > 4 * STEEP:", "call": "work.wait()",
        "story": "Rank 2 exchanges its edges a second time; ranks 1 and 3 do not know of its "
        "level and wait in the all_reduce of the step's length with the others.",
    },
    "ring_two_ways": {
        "group": "world", "op": "send to 0 and recv from 3 twice, none the other way",
        "calls": "+1 right, -1 left", "step": 6, "branch": "if used <= HALF:",
        "call": "work.wait()",
        "story": "Rank 4 waits for a second block of rank 3, which waits for one of rank 4, and "
        "rank 0's block to rank 4 is not taken; ranks 1 and 2 wait in a later hop.",
    },
    "pp_tokens_return": {
        "group": "world", "op": "send of a token to 0", "calls": -1,
        "step": "sixth batch of request 3", "branch": "if request in self.stopped:",
        "call": "dist.recv(hidden, src=rank - 1)",
        "story": "Rank 3 takes a batch of a request that has stopped, sends nothing, and waits "
        "for the next batch; rank 0 waits for the token, ranks 1 and 2 for batches.",
    },
    "ep_tokens_dropped": {
        "group": "world", "op": "send of rows to 3 and 4", "calls": "-1 each", "step": 6,
        "branch": "taken = part if peer == own else part[: max(0, left)]",
        "call": "dist.all_reduce(out.sum())",
        "story": "Rank 1 leaves out its rows to ranks 3 and 4, which take its later message for "
        "them and then wait for another; ranks 0 to 2 wait in the all_reduce.",
    },
    "dual_batch_yield": {
        "group": "new group (0-3)", "op": "all_gather of the next layer instead of all_reduce",
        "calls": "-1; +1", "step": 5, "branch": "if len(self.rows) < SMALLEST:",
        "call": "dist.all_gather_into_tensor(everyone, padded, group=self.group)",
        "story": "The second thread of rank 3 goes from all_reduce to the next all_gather without "
        "the first one's all_reduce; on its peers the second thread waits in all_reduce.",
    },
    "executor_call_cancelled": {
        "group": "world", "op": "all_gather", "calls": -1, "step": 8,
        "branch": "await asyncio.wait_for(self.blocking.run(self.share_loads), PATIENCE)",
        "call": "dist.all_reduce(gradient)",
        "story": "Rank 0 writes for 2.5 s, and the all_gather behind that is cancelled after 1 s; "
        "it is in the all_reduce of step 9, its peers wait in the all_gather.",
    },
    "lazy_group_first_use": {
        "group": "both new groups (0-4)", "op": "all_reduce in the first, all_gather in the second",
        "calls": "another op", "step": "first",
        "branch": "if user not in self.made:",
        "call": "dist.all_gather(...) of Loader.agree; dist.all_reduce(norm, group=group)",
        "story": "Rank 4 makes the group of statistics first, its peers that of the loader, so "
        "that each thread of rank 4 is in the group of the other one and nobody gets through.",
    },
    "stream_client_gone": {
        "group": "world", "op": "broadcast from 0", "calls": -1, "step": "about 16",
        "branch": "if leaves and self.impatient():", "call": "await stream.tokens.put(token)",
        "story": "A client of rank 0 has gone, its queue is full, and the scheduler waits for "
        "room in it; ranks 1 to 3 wait in the broadcast of the next plan.",
    },
    "child_inherits_pipe": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 5,
        "branch": "counters = [Counter() for _ in parts]", "call": "count = self.results.recv()",
        "story": "Rank 3 has two children, the second of which has inherited the writing end of "
        "the first one's pipe; the first reads on, and rank 3 waits for its result.",
    },
    "sockets_both_sendall": {
        "group": "world", "op": "all_reduce", "calls": "-1 each", "step": 6,
        "branch": "blocks = 5000", "call": "self.connection.sendall(...)",
        "story": "Ranks 1 and 2 send each other 20 MB and read only after that, so that both wait "
        "in sendall; ranks 0, 3 and 4 wait in the all_reduce.",
    },
    "two_adapter_and_buffers": {
        "group": "first (0-2); second (3-5)", "op": "all_reduce; all_reduce", "calls": "-1; -",
        "step": "6 of rank 1; 4 of rank 5", "branch": "if self.empty():; count = BUFFERS + 1",
        "call": "1: dist.all_gather(parts, hidden, group=self.group); 5: self.there.get()",
        "story": "Rank 1 leaves out an all_reduce and is in the all_gather after it, ranks 0 and "
        "2 wait in the all_reduce. Rank 5 waits for a block, its thread for a buffer that rank 5 "
        "holds; ranks 3 and 4 wait in their all_reduce.",
    },
    "two_hop_and_flock": {
        "group": "world: messages of 0 with 1 and 3; second (4-7)", "op": "send, recv; all_gather",
        "calls": "-1 each; -", "step": "5 of rank 0; 6 of rank 7",
        "branch": "return min(EACH - 1, -(-self.window // rows)); if self.entries >= most:",
        "call": "0: dist.all_reduce(...); 7: fcntl.flock(file, fcntl.LOCK_EX) of compact()",
        "story": "Rank 0 makes two hops of three and is in the all_reduce with rank 2; ranks 1 "
        "and 3 wait for it in the third. Rank 7 waits for a lock that it holds by another "
        "descriptor; ranks 4 to 6 wait in their all_gather.",
    },
}  # fmt: skip
