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

_ROWS = [
    # Training loops, optimizers, experts
    Program(
        "best_loss_reduce", "torch",
        "rank 0 alone has the mean of the losses, takes the epoch for no better one, and leaves "
        "the gather of the weights out",
        (0,), (*ABSENT, *ORDER),
    ),
    Program(
        "moe_tracker_annealed", "torch",
        "ranks 6 and 7, the last stage, have no balancing loss any more, and leave two sums of "
        "the log out",
        (6, 7), (*ABSENT, *ORDER), world=8,
    ),
    Program(
        "zero3_head_spans", "torch",
        "rank 2 uses a module twice in a step, and gathers its weight once more",
        (2,), ALONE, world=5,
    ),
    Program(
        "log_keys_differ", "torch",
        "rank 4 has logged one more name in an epoch, and sums its mean as well",
        (4,), ALONE, world=5,
    ),
    Program(
        "loader_peek_last", "torch",
        "rank 5 takes a first batch for a picture: its loader broadcasts its state once more",
        # Its extra broadcast is taken for that of the epoch; its second one stays alone.
        (5,), ALONE, world=6,
    ),
    Program(
        "sparse_dist_not_pipelined", "torch",
        "rank 2 sends the ids of the next batch after the sum of this one, its peers before it",
        # Stacks: all wait in the same line, and show no pending call.
        (2,), (*ORDER, *ABSENT), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "hsdp_window_short", "torch",
        "rank 3 misses a sample and takes no microbatch for the last one, so that its gradients "
        "are not summed over the replicas",
        # Stacks: all wait in the same line for calls in backward, and show no groups.
        (3,), (*ABSENT, *ORDER), undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "muon_none_gradient", "torch",
        "rank 1 has no gradient of one parameter, and one round of the optimizer fewer",
        (1,), (*ABSENT, *ORDER),
    ),
    # Point to point
    Program(
        "heal_step_restored", "torch",
        "rank 3 reports that it has no state, finds a copy, and does not receive what rank 0 "
        "sends it",
        # The two alone differ: by the calls, rank 0 may have sent to one too many.
        (3,), (*PIPELINE, *ORDER), undecided=(0, 3), undecided_untraced=_FIVE,
        unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "object_keepalive", "torch",
        "rank 1 sends one number where rank 2 expects an object, which is two messages",
        # By the calls alone, rank 2 may have received once too often.
        (1,), (*PIPELINE, "op_mismatch", "size_mismatch"), undecided=(1, 2),
        undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    # A rank waits for something else
    Program(
        "loop_blocked_by_sum", "torch",
        "rank 0 waits in an all_reduce in its event loop, which has an answer to give to rank 2 "
        "first; rank 2 waits for that answer",
        # What shows is that rank 2 does not come; whose answer it waits for, stacks may not show.
        (0,), (*HALT, *ABSENT, "order_cycle"), undecided=_ALL, also=((2,),),
    ),
    Program(
        "ckpt_retry_cleans", "torch",
        "rank 0 tries a checkpoint again, deletes the shards of its peers and polls for them",
        # Without a record two samples do not show whether it polls for ever.
        (0,), (*HALT, "missing_call"), busy=(0,), unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "reader_buffered_select", "torch",
        "rank 1 waits in select() for a line that lies in its own buffer already",
        (1,), (*HALT, "missing_call"),
    ),
    Program(
        "control_behind_requests", "torch",
        "rank 2 waits for a command that its pool does not begin, since all of its threads wait "
        "for that command",
        (2,), (*HALT, "missing_call"), world=5,
    ),
    # Two faults
    Program(
        "two_fp8_and_import", "torch",
        "two faults: rank 1 leaves out an all_reduce, a context having ended by an exception; "
        "rank 4 imports a module that waits for a thread that imports the same module",
        (1, 4), (*ABSENT, *ORDER, *HALT), world=6,
    ),
    Program(
        "two_daemon_and_counter", "torch",
        "two faults: rank 4 starts its daemon again, with one broadcast more; rank 0 polls for a "
        "number to become even, whose writer was killed",
        (0, 4), (*ALONE, *HALT, "missing_call"), busy=(0,), unknown_in=(UNTRACED,), world=6,
    ),
    # Healthy
    Program(
        "healthy_async_saver", "torch",
        "nothing: threads save with a group of their own and wait for one another for 12 to 16 s, "
        "main threads train meanwhile and then wait for them",
        hangs=False,
    ),
    Program(
        "healthy_one_step_off", "torch",
        "nothing: workers generate for 1 to 13 s and send unequal numbers of samples, one none",
        hangs=False, world=5,
    ),
    Program(
        "healthy_vote_dummy", "torch",
        "nothing: ranks have unequal numbers of batches and take part with dummies, one rank "
        "works alone for 9 to 12 s at times",
        hangs=False, world=6,
    ),
    Program(
        "healthy_write_token", "torch",
        "nothing: ranks write shards in turn by a token, for up to 12 s each, two hosts apart",
        hangs=False, world=6,
    ),
]  # fmt: skip

TABLE = [replace(program, folder="strangers11/programs") for program in _ROWS]
PROGRAMS = {program.name: program for program in TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "best_loss_reduce": {
        "group": "world", "op": "all_gather", "calls": -1, "step": "epoch 5",
        "branch": "if loss >= self.lowest:", "call": "dist.reduce_scatter_tensor(part, gradient)",
        "story": "The mean is reduced to rank 0, its peers go by their own loss. That of rank 0 "
        "has risen: it returns and is in the reduce_scatter of epoch 6, its peers wait in the "
        "all_gather of the weights.",
    },
    "moe_tracker_annealed": {
        "group": "pipelines (0, 2, 4, 6) and (1, 3, 5, 7)", "op": "all_reduce",
        "calls": "-1 each, and -1 of the pair (6, 7)", "step": 5,
        "branch": "if coefficient > 0:", "call": "dist.all_reduce(norm)",
        "story": "The coefficients of layers 6 and 7 have come to zero, so that their tracker is "
        "empty. Ranks 6 and 7 are in the all_reduce of all, their pipelines wait in that of the "
        "losses.",
    },
    "zero3_head_spans": {
        "group": "world", "op": "all_gather", "calls": +1, "step": 6,
        "branch": "for start, end in spans", "call": "dist.all_gather_into_tensor(full, shard)",
        "story": "Rank 2 has two spans and gathers the head again for the second one. Its peers "
        "are in loss.backward(), in the reduce_scatter of the head's gradient.",
    },
    "log_keys_differ": {
        "group": "world", "op": "all_reduce", "calls": +1, "step": "epoch 3",
        "branch": "found.append(\"cyclist\")", "call": "dist.all_reduce(pair)",
        "story": "Rank 4 has seen a label more, and sums four means where its peers sum three. "
        "They wait in the all_gather of the seconds.",
    },
    "loader_peek_last": {
        "group": "world", "op": "broadcast from 0", "calls": +1, "step": "epoch 2",
        "branch": "if self.due(epoch):", "call": "dist.broadcast(state, src=0)",
        "story": "Rank 5 begins a pass over its loader to show its first batch, and another to "
        "train. It waits in the second broadcast, its peers in dist.all_reduce(gradient).",
    },
    "sparse_dist_not_pipelined": {
        "group": "world", "op": "all_reduce before all_to_all", "calls": 0, "step": "batch 5",
        "branch": "if batch is not None and self.can_pipeline(batch):",
        "call": "dist.all_reduce(gradient)",
        "story": "Rank 2 does not send the ids of batch 6 ahead. Its peers have posted their "
        "all_to_all, without waiting for it, and wait in the all_reduce of batch 5 after it, rank "
        "2 in that of the same line before it.",
    },
    "hsdp_window_short": {
        "group": "replicas (1, 3, 5)", "op": "all_reduce", "calls": "-1 for each of three units",
        "step": 4, "branch": "return self.seen >= self.size", "call": "loss.backward()",
        "story": "Rank 3 has seen 23 of 24 samples, and does not sum over its replicas. Ranks 1 "
        "and 5 wait for it in the all_reduce of the first unit, ranks 0 and 4 for these in the "
        "reduce_scatter of the second, rank 2 for ranks 0 and 4 in the all_reduce of the second, "
        "and rank 3, one unit further, for rank 2.",
    },
    "muon_none_gradient": {
        "group": "world", "op": "all_gather", "calls": -1, "step": 5,
        "branch": "if len(pictures):", "call": "dist.all_reduce(buffer)",
        "story": "Rank 1 has no pictures, so that eight of nine parameters have gradients: two "
        "rounds instead of three. It is in the all_reduce of the next step, its peers in the third "
        "all_gather.",
    },
    "heal_step_restored": {
        "group": "world", "op": "recv from 0", "calls": -1, "step": 6,
        "branch": "if self.step < quorum.step:", "call": "dist.all_reduce(gradient)",
        "story": "Rank 3 has reported step 0 and then loads step 6 from its disk. Rank 0 waits in "
        "its send to rank 3, all others are in the all_reduce.",
    },
    "object_keepalive": {
        "group": "world", "op": "send to 2: one instead of two", "calls": -1, "step": "round 6",
        "branch": "if not records and faulty:", "call": "dist.all_reduce(counted)",
        "story": "Rank 2 takes the number of the round for the size of an object and waits for its "
        "bytes. Rank 3 waits for rank 2, ranks 0 and 1 are in the all_reduce.",
    },
    "loop_blocked_by_sum": {
        "group": "world", "op": "all_reduce", "calls": "2 never comes", "step": 7,
        "branch": "if faulty and rows.numel() < SMALL:", "call": "call(rows)",
        "story": "Rank 0 calls all_reduce of six numbers without a thread, so that its server does "
        "not answer. Ranks 1 and 3 are in the all_reduce, rank 2 waits for its samples.",
    },
    "ckpt_retry_cleans": {
        "group": "world", "op": "barrier", "calls": "0 never comes", "step": 5,
        "branch": "except OSError as error:",
        "call": "self.finish(folder, folder.wait_for_shards(self.world))",
        "story": "The index cannot be written, rank 0 cleans the folder with all shards in it and "
        "polls for five, of which it writes one. Its peers are in the barrier.",
    },
    "reader_buffered_select": {
        "group": "world", "op": "all_reduce", "calls": "1 never comes", "step": 9,
        "branch": "while more:",
        "call": "ready, _, _ = select.select([self.child.stdout], [], [], 30)",
        "story": "The answer comes in two lines at once; readline() takes both from the pipe and "
        "returns the first. Rank 1 waits for the pipe, its peers in the all_reduce.",
    },
    "control_behind_requests": {
        "group": "world", "op": "all_gather", "calls": "2 never comes", "step": "iteration 4",
        "branch": "return CONCURRENCY",
        "call": "self.pool.submit(getattr(self.engine, name)).result()",
        "story": "Four requests wait at the gate in the four threads of rank 2, and resume is the "
        "fifth in line. Its peers wait in the all_gather of rewards.",
    },
    "two_fp8_and_import": {
        "group": "first (0-2): -1; second (3-5): 4 never comes", "op": "all_reduce MAX",
        "calls": "-1; -", "step": "3 of rank 1, 5 of rank 4",
        "branch": "if self.depth == 0:; warm = WARM if faulty and rank == 4 else \"\"",
        "call": "1: dist.all_gather(parts, rows, group=mine); 4: thread.join()",
        "story": "The depth of rank 1 stays at one, since its exception passed the yield; it is in "
        "the all_gather, ranks 0 and 2 in the all_reduce. Rank 4 imports a module that joins its "
        "thread, which waits for that import; ranks 3 and 5 are in the all_reduce.",
    },
    "two_daemon_and_counter": {
        "group": "first (0-2): 0 never comes; second (3-5): +1", "op": "all_reduce; broadcast",
        "calls": "-; +1", "step": "9 of rank 0, 8 of rank 4",
        "branch": "if self.daemon is None or self.daemon.poll() is not None:; while True:",
        "call": "4: dist.broadcast(port, group=self.group, group_src=0); 0: time.sleep(0.002)",
        "story": "The daemon of rank 4 has ended, and it asks for an address again; ranks 3 and 5 "
        "are in the all_gather. The writer of rank 0 died while its number was odd; ranks 1 and 2 "
        "wait in the all_reduce.",
    },
}  # fmt: skip
