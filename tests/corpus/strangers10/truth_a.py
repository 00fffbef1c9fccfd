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
    # Training, RL, checkpoints, experts
    Program(
        "contrastive_no_pairs", "torch",
        "rank 1 has no pair of one class in its batch, and its loss leaves the backward pass of a "
        "gather out",
        (1,), (*ABSENT, *ORDER),
    ),
    Program(
        "dtensor_run_check", "torch",
        "rank 4 has forgotten a shape that it knew, and checks it once more with its group",
        (4,), ALONE, world=6,
    ),
    Program(
        "dapo_overlong_drop", "torch",
        "rank 0 counts its dropped samples out alone, and samples for one round more",
        (0,), ALONE, world=5,
    ),
    Program(
        "fsdp2_local_copy", "torch",
        "ranks 4 and 5 find a copy of the weights on their host and cut it up, their peers "
        "broadcast the weights",
        (4, 5), (*ABSENT, *ALONE), world=6,
    ),
    Program(
        "moe_counts_reused", "torch",
        "rank 6 leaves out the gather of the counts of tokens, its own being as before",
        (6,), (*ABSENT, *ORDER), world=8,
    ),
    # Point to point
    Program(
        "pipe_pool_trimmed", "torch",
        "rank 2 drops its buffers and waits for a shape that rank 1 sends after a change only",
        # Both ends wait for each other; ranks 0 and 1 do what rank 1 does with rank 2.
        (2,), (*PIPELINE, "extra_call", "op_mismatch", "order_cycle", "stalled"),
        undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "outbox_small_rest", "torch",
        "rank 1 counts small sends as nothing and never posts them; rank 2 waits for the first",
        (1,), PIPELINE, undecided_untraced=_FIVE, unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "unet_skip_reused", "torch",
        "rank 0 does not send features that have hardly moved, rank 3 waits for them",
        (0,), (*PIPELINE, "order_cycle", "stalled"), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "reshard_new_tokens", "torch",
        "rank 4 expects three blocks of a weight from rank 1, which sends two as ever",
        # Rank 1 waits in its next send to rank 4, under another tag than rank 4 waits for.
        (4,), (*PIPELINE, "extra_call", "op_mismatch", "order_cycle", "stalled"),
        undecided_untraced=_FIVE, unknown_in=(UNTRACED,), world=5,
    ),
    # Calls of threads
    Program(
        "comm_pool_order", "torch",
        "rank 4 has two threads for calls, and posts all_reduce before all_gather",
        (4,), (*ORDER, *ABSENT), world=5,
    ),
    Program(
        "stats_thread_stop", "torch",
        "the thread of rank 3 ends by itself after four rounds; the others wait for it, and at "
        "the end their main threads wait for their threads",
        (3,), (*ABSENT, "order_cycle"),
    ),
    Program(
        "abandoned_recv", "torch",
        "rank 2 gives up a receive that goes on in its thread and takes the next message; rank 2 "
        "posts more of them, and rank 0 waits for its result",
        # The loop of rank 2 wakes up at times to post another.
        (2,), (*PIPELINE, "extra_call", "order_cycle", "stalled"), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,), busy=(2,),
    ),
    # A rank waits for something else
    Program(
        "store_key_cleaned", "torch",
        "rank 0 deletes the plan of an epoch that rank 3 has not read yet; rank 3 waits for the "
        "key, all others for rank 3",
        # What shows is that rank 3 does not come; no record holds who has deleted the key.
        (0,), (*HALT, *ABSENT), undecided=_ALL, also=((3,),),
    ),
    Program(
        "rate_limit_bucket", "torch",
        "rank 0 waits for more tokens than its bucket has room for",
        (0,), (*HALT, "missing_call"), world=3,
    ),
    Program(
        "cache_second_connection", "torch",
        "rank 4 waits for an answer over a second connection, while its server serves the first",
        (4,), (*HALT, "missing_call"), world=5,
    ),
    # Two faults
    Program(
        "two_fallback_and_future", "torch",
        "two faults: rank 1 calls all_reduce where its group calls reduce_scatter, rank 5 waits "
        "for a future that a callback has not set",
        # Stacks show no groups: two are in an all_gather, two in a reduce_scatter, one in neither.
        (1, 5), (*ORDER, *HALT, "missing_call"), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "two_guidance_and_adapter", "torch",
        "two faults: rank 2 leaves out a gather of guidance, rank 3 has one layer more to sum",
        (2, 3), (*ABSENT, *ALONE), world=6,
    ),
    # Healthy
    Program(
        "healthy_isend_backlog", "torch",
        "nothing: rank 0 has sends pending for half a minute, its peers take them after 1 to 19 s "
        "each and end one after the other",
        hangs=False, world=5,
    ),
    Program(
        "healthy_population", "torch",
        "nothing: three pairs train for unequal numbers of steps, one waits for up to 13 s",
        hangs=False, world=6,
    ),
    Program(
        "healthy_fsdp2_validator", "torch",
        "nothing: rank 3 makes no calls, polls for files and validates for 7 to 14 s; at the end "
        "its peers wait for it in a barrier",
        hangs=False,
    ),
]  # fmt: skip

TABLE = [replace(program, folder="strangers10/programs") for program in _ROWS]
PROGRAMS = {program.name: program for program in TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "contrastive_no_pairs": {
        "group": "world", "op": "scatter x4 (backward of all_gather)", "calls": -4, "step": 5,
        "branch": "if not same.any():", "call": "dist.all_reduce(parameter.grad)",
        "story": "The loss of rank 1 does not depend on the gathered features, so that backward "
        "does not speak; it waits in the all_reduce of the first gradient. Its peers wait in "
        "loss.backward(), in scatters, the backward pass of all_gather.",
    },
    "dtensor_run_check": {
        "group": "tensor (3-5)", "op": "all_gather (of an object), and a broadcast after it",
        "calls": "+1 or more", "step": 3, "branch": "del self.shapes[: -self.limit]",
        "call": "DTensor.from_local(rows, self.mesh, [Replicate()], run_check=check)",
        "story": "Rank 4 remembers two shapes and checks a length of 8 again, with a gather in its "
        "group. Ranks 3 and 5 wait in redistribute(), for an all_reduce; ranks 0 to 2 wait for "
        "ranks 3 to 5 in the pairs of replicas.",
    },
    "dapo_overlong_drop": {
        "group": "world", "op": "all_gather", "calls": +1, "step": 6,
        "branch": "have -= len(overlong)", "call": "dist.all_gather(counts, count)",
        "story": "Rank 0 takes six overlong groups off its own count and begins a third round. Its "
        "peers have enough and wait in dist.all_reduce(total).",
    },
    "fsdp2_local_copy": {
        "group": "world", "op": "scatter instead of broadcasts of objects and weights",
        "calls": "other calls", "step": "load",
        "branch": "if copy is not None:",
        "call": "set_model_state_dict(model, state, options=options)",
        "story": "Ranks 4 and 5, of one host, load an old copy and scatter each weight from "
        "rank 0. Their peers wait in the broadcast of the list of weights, in the same line.",
    },
    "moe_counts_reused": {
        "group": "second (4-7)", "op": "all_gather of counts", "calls": -1, "step": "5, layer 0",
        "branch": "if self.last is not None and self.last[0] == sends:",
        "call": "dist.all_to_all_single(inbox, rows, takes, sends, group=self.group)",
        "story": "All tokens of rank 6 go to one expert twice, and it takes the counts of its "
        "peers for known. Ranks 4, 5 and 7 wait in the all_gather of counts, ranks 0 to 3 in the "
        "all_reduce of all.",
    },
    "pipe_pool_trimmed": {
        "group": "world", "op": "recv from 1 of a shape (tag 1)", "calls": +1,
        "step": "5, third microbatch", "branch": "if self.used > self.limit:",
        "call": "dist.recv(announced, src=self.before, tag=SHAPE)",
        "story": "Rank 2 clears its pool and with it the shape that it knew. It waits for a "
        "shape from rank 1, which sends rows (tag 2); rank 0 waits in a send to rank 1, rank 3 "
        "in a recv from rank 2.",
    },
    "outbox_small_rest": {
        "group": "world", "op": "isend to 2", "calls": -6, "step": 6,
        "branch": "self.kib += rows.nbytes // 1024",
        "call": "dist.broadcast(result, src=world - 1)",
        "story": "Rows of 384 bytes count as 0 KiB, so that close() finds nothing to post. Rank 1 "
        "is in the broadcast from rank 4 with rank 0; ranks 2, 3 and 4 wait for their stage "
        "before.",
    },
    "unet_skip_reused": {
        "group": "world", "op": "isend to 3 (tag 2)", "calls": -1, "step": "6 of image 0",
        "branch": "if self.stale(features):", "call": "dist.recv(rows, src=world - 1, tag=LATENT)",
        "story": "Rank 0 keeps features that moved by less than 0.02 to itself and waits for the "
        "latent of rank 3. Rank 3 waits for these features, ranks 1 and 2 for the next latent.",
    },
    "reshard_new_tokens": {
        "group": "world", "op": "irecv from 1 (tag 0)", "calls": +1, "step": "version 4",
        "branch": "if new:", "call": "dist.irecv(rows, src=trainer, tag=tag).wait()",
        "story": "Rank 4 adds two tokens to its rows, and so waits for a third block of the "
        "embedding. Rank 1 waits for its blocks of the head (tag 1) to be taken by rank 4, all "
        "others are in the all_reduce.",
    },
    "comm_pool_order": {
        "group": "the second of all ranks", "op": "all_reduce before all_gather", "calls": 0,
        "step": 4, "branch": "return max(1, processors)",
        "call": "dist.all_reduce(rows, group=self.group), of a thread",
        "story": "The first task of rank 4 copies for 0.3 s, and its second thread posts the "
        "all_reduce meanwhile. The threads of its peers wait in the all_gather; all main threads "
        "wait for futures.",
    },
    "stats_thread_stop": {
        "group": "the second of all ranks", "op": "all_reduce", "calls": "-2 for each round",
        "step": "round 4", "branch": "while not self.full():",
        "call": "3: dist.all_gather(losses, torch.rand(1)); peers: self.thread.join()",
        "story": "The thread of rank 3 leaves its loop without a vote. Threads of its peers wait "
        "in dist.all_reduce(total, group=self.group), their main threads in join(), and rank 3 in "
        "the all_gather after that.",
    },
    "abandoned_recv": {
        "group": "world", "op": "recv from 0 (tag 1)", "calls": "+1 and more; a send is missing",
        "step": "round 5", "branch": "except TimeoutError:",
        "call": "dist.recv(rows, src=SCHEDULER, tag=WORK), of threads",
        "story": "A thread of rank 2 that nobody waits for takes the work of round 5. Rank 2 waits "
        "for the work again, rank 0 for its result, rank 3 for rank 0 to take its own.",
    },
    "store_key_cleaned": {
        "group": "world", "op": "all_reduce", "calls": "3 never comes", "step": "epoch 5",
        "branch": "if old >= 0:", "call": "plan = json.loads(self.store.get(self.name(epoch)))",
        "story": "Rank 0 keeps one plan and deletes plan/5 when it publishes plan/6. Rank 3 has "
        "built an index for 1.8 s and asks for plan/5, its peers wait in the all_reduce.",
    },
    "rate_limit_bucket": {
        "group": "world", "op": "all_gather", "calls": -1, "step": "round 5",
        "branch": "self.tokens = min(self.room, self.tokens + self.rate // 20)",
        "call": "self.changed.wait_for(lambda: self.tokens >= count)",
        "story": "Rank 0 asks for 1244 tokens of a bucket that holds 1200 at most. Its peers wait "
        "in the all_gather of scores.",
    },
    "cache_second_connection": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "epoch 3, sample 2",
        "branch": "if float(gradient.abs().max()) > 25.0:",
        "call": "yield torch.tensor([float(one) for one in lines.readline().split()])",
        "story": "Rank 4 reads samples while it reads samples, over a connection that its server "
        "does not accept before the other one ends. Its peers wait in the all_reduce.",
    },
    "two_fallback_and_future": {
        "group": "first (0-2): all_reduce instead of reduce_scatter; second (3-5): 5 never comes",
        "op": "reduce_scatter", "calls": "0; -", "step": "6 of rank 1, 4 of rank 5",
        "branch": "if real % PARTS == 0:; except KeyError as error:",
        "call": "1: dist.all_reduce(rows, group=self.group); "
        "5: real = client.length(request_of(rank, step)).result()",
        "story": "Rank 1 has 10 rows, which cannot be cut in three; gloo takes its all_reduce for "
        "the reduce_scatter of ranks 0 and 2. These wait in the all_gather after it, rank 1 in its "
        "next all_reduce; rank 5 waits for a future, ranks 3 and 4 for rank 5 in a reduce_scatter.",
    },
    "two_guidance_and_adapter": {
        "group": "first (0-2): -1; second (3-5): +1", "op": "all_gather; all_reduce",
        "calls": "-1; +1", "step": "4 of picture 2 of rank 2; 0 of picture 1 of rank 3",
        "branch": "if not self.low <= time <= self.high:; if name in self.adapter.targets:",
        "call": "dist.all_reduce(rows, group=self.group), of both",
        "story": "Rank 2 does not gather at time 0.4 and is in the next forward, ranks 0 and 1 "
        "wait in the all_gather. Rank 3 sums a third layer, ranks 4 and 5 wait in the all_gather.",
    },
}  # fmt: skip
