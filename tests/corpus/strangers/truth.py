"""What is wrong in each program of this folder: written before any tool was run on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.corpus.runner.truth import (
    ABSENT,
    ALONE,
    ATTACH,
    DIAGNOSE,
    HALT,
    ORDER,
    PIPELINE,
    UNTRACED,
    WATCH,
    Program,
)

__all__ = ["PROGRAMS", "STORIES"]

_ALL = (0, 1, 2, 3)
_FIVE = (*_ALL, 4)
_SIX = (*_FIVE, 5)
_ANY_WAY = (ATTACH, WATCH, DIAGNOSE, UNTRACED)

_TABLE = [
    Program(
        "metric_interval", "torch",
        "rank 2 logs metrics each five steps from step 6 on, its peers each two until step 10",
        (2,), (*ABSENT, "order_cycle"),
    ),
    Program(
        "dp_dummy_batch", "torch",
        "the idle engine of ranks 4 and 5 leaves out one dummy batch",
        (4, 5), (*ABSENT, *ORDER), world=6,
    ),
    Program(
        "zero_inf_skip", "torch",
        "rank 3 leaves out one step of the sharded optimizer, its gradients being infinite",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "tp_decode_eos", "torch",
        "rank 2 ends the decoding loop of request 5 one round early",
        (2,), (*ABSENT, *ORDER),
    ),
    Program(
        "tp_microround_twice", "torch",
        "rank 3 runs one microbatch twice; rank 2 takes its calls for those of the next step",
        # All wait in calls of two or of all; rank 1 waits for rank 3 in its own group.
        (3,), ALONE, undecided_untraced=_ALL,
    ),
    Program(
        "moe_split_caught", "torch",
        "rank 0 asks for more tokens than it has, catches the exception and goes on",
        (0,), (*ABSENT, "split_mismatch", "op_mismatch"),
    ),
    Program(
        "ps_any_source", "torch",
        "worker 3 sends no gradient in one round; the server waits for any worker's",
        (3,), PIPELINE, undecided=(0, 3), undecided_untraced=_FIVE, unknown_in=(UNTRACED,),
        world=5,
    ),
    Program(
        "pipe_interleaved_order", "torch",
        "rank 2 receives the input of its second chunk before it sends the output of its first",
        (2,), ("p2p_mismatch", "order_cycle", "stalled"), undecided=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "rl_weight_sync", "torch",
        "rank 3 generates before it takes the new weights, its peers take the weights first",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "two_faults_pp", "torch",
        "rank 1 of one pipeline and rank 5 of the other each have one microbatch fewer",
        (1, 5), PIPELINE, undecided=(0, 1, 2, 4, 5), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "two_faults_tp", "torch",
        "rank 0 leaves out an all_reduce of its group, rank 4 posts one all_gather more in its own",
        (0, 4), (*ABSENT, *ALONE), world=6,
    ),
    Program(
        "healthy_rl_generation", "torch",
        "nothing: ranks 2 and 3 generate for minutes with tools that answer over sockets",
        hangs=False,
    ),
    Program(
        "timeout_repost", "torch",
        "rank 2 gives up waiting after 1.5 s and posts its all_reduce once more; at the end "
        "it does so five times, and all are in the last barrier",
        (2,), ALONE, undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "sigkill_subgroup", "torch",
        "rank 4 is killed; rank 3, which shares a group with it, waits for its return in the store",
        (4,), ("dead_rank",), undecided_untraced=(3, 4), unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "late_checkpoint", "torch",
        "rank 2 waits for a file lock that its own last checkpoint never released",
        (2,), HALT,
    ),
    Program(
        "grad_accum_uneven", "torch",
        "rank 1 reduces gradients each three microbatches of an epoch, its peers each four",
        (1,), ALONE,
    ),
    Program(
        "eval_subset", "torch",
        "ranks 2 and 3 leave an evaluation out, ranks 0 and 1 run it",
        # Two against two: the period of the earlier evaluations says who is late.
        (2, 3), (*ABSENT, *ALONE), undecided=_ALL,
    ),
    Program(
        "async_work_not_waited", "torch",
        "rank 1 reads a header that it has not waited for, and receives no blocks for it",
        (1,), PIPELINE, undecided=(0, 1), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "nested_pp_tp_skip", "torch",
        "ranks 2 and 3, the middle stage, leave out a microbatch with all its calls",
        (2, 3), PIPELINE, undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "thread_prefetch_order", "torch",
        "the thread of rank 2 posts broadcast before all_gather, its peers' the other way round",
        (2,), ("op_mismatch", "order_cycle"),
    ),
    Program(
        "healthy_uneven_matched", "torch",
        "nothing: pairs with unequal numbers of microbatches, each rank slow in turn",
        hangs=False,
    ),
    Program(
        "healthy_first_step_long", "torch",
        "nothing: rank 0 compiles for minutes in processes that it starts, before its first call",
        hangs=False, world=3,
    ),
    Program(
        "healthy_asymmetric_groups", "torch",
        "nothing: overlapping groups whose members post unequal numbers of calls by design",
        hangs=False, world=5,
    ),
    Program(
        "tie_of_pairs", "torch",
        "rank 0 leaves out one of three all_reduces of its pair",
        # The other pair of the mesh has three in each step, and so had this one.
        (0,), (*ABSENT, *ORDER), undecided=(0, 1), undecided_untraced=_ALL,
    ),
    Program(
        "loader_worker_killed", "torch",
        "rank 4 waits for its queue, whose other process was killed",
        (4,), HALT, world=5,
    ),
    Program(
        "resume_decided_alone", "torch",
        "rank 0 leaves out the broadcast of which it is the root, its peers wait there",
        (0,), (*ABSENT, *ORDER), world=3,
    ),
    Program(
        "graph_warmup_alone", "torch",
        "rank 3 warms a graph up that its peers have: six all_reduces more",
        # A broadcast lets some ranks through: three are in forward(), and one is not.
        (3,), ALONE, undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "store_key_unset", "torch",
        "rank 0 does not set the key that its peers wait for and goes on",
        (0,), (*ABSENT, "init_stalled"), undecided=_ALL,
    ),
    Program(
        "ring_wrong_destination", "torch",
        "rank 4 sends a block to rank 1 that rank 0 waits for",
        (4,), PIPELINE, undecided=(0, 1, 4), undecided_untraced=_FIVE, unknown_in=(UNTRACED,),
        world=5,
    ),
    Program(
        "finally_barrier", "torch",
        "rank 4 raises an exception in a step, and waits in the barrier of its finally",
        (4,), (*ABSENT, *ALONE), world=5,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "metric_interval": {
        "group": "metrics (0-3)", "op": "all_reduce", "calls": -1, "step": 6,
        "branch": "if step % interval == 0:",
        "call": "dist.all_reduce(torch.randn(32), group=pair)",
    },
    "dp_dummy_batch": {
        "group": "tp (4, 5): -2; dp: -1 each", "op": "all_reduce", "calls": -3,
        "step": "13, records may show steps 12 to 15 only",
        "branch": "elif faulty and engine == 2 and step == 13:",
        "call": "dist.all_gather(unfinished, torch.ones(1), group=dp)",
    },
    "zero_inf_skip": {
        "group": "world", "op": "all_gather x3, all_reduce", "calls": -4, "step": 9,
        "branch": "if overflow:", "call": "dist.all_reduce(gradient)",
    },
    "tp_decode_eos": {
        "group": "world", "op": "all_reduce x2, all_gather", "calls": -3,
        "step": "request 5, any of its 8 rounds",
        "branch": "if generated == length or sampled_eos:",
        "call": "dist.broadcast(prompt, src=0)",
    },
    "tp_microround_twice": {
        "group": "tp (2, 3)", "op": "all_reduce", "calls": +2, "step": "7, third microbatch",
        "branch": "if micro == 2 and not retried:",
        "call": "dist.all_reduce(torch.randn(32), group=tp)",
    },
    "moe_split_caught": {
        "group": "experts (0-3)", "op": "all_to_all", "calls": -2, "step": 8,
        "branch": "except (RuntimeError, ValueError) as error:",
        "call": "dist.all_reduce(torch.ones(4))",
    },
    "ps_any_source": {
        "group": "world", "op": "send to 0", "calls": -1, "step": 6, "branch": "if not empty:",
        "call": "dist.recv(weights, src=0)",
    },
    "pipe_interleaved_order": {
        "group": "world", "op": "recv before send", "calls": 0, "step": 10,
        "branch": "if faulty and rank == 2 and micro == 10:",
        "call": "dist.recv(again, src=before)",
    },
    "rl_weight_sync": {
        "group": "sync (0-3) after rollouts (2, 3)", "op": "broadcast x3, barrier", "calls": 0,
        "step": 6, "branch": "if not early:",
        "call": "dist.all_gather(samples, torch.randn(16), group=rollouts)",
    },
    "two_faults_pp": {
        "group": "world", "op": "1: recv from 0, send to 2; 5: recv from 4", "calls": -1, "step": 5,
        "branch": "for _ in range(micros):",
        "call": "dist.recv(gradient, src=rank + 1) of 1; dist.send(gradient, dst=rank - 1) of 5",
    },
    "two_faults_tp": {
        "group": "tp (0-2): all_reduce -1 of 0; tp (3-5): all_gather +1 of 4", "step": 6,
        "branch": "if attention:", "call": "dist.all_gather(parts, torch.randn(16), group=tp)",
    },
    "timeout_repost": {
        "group": "world", "op": "all_reduce", "calls": "+1 in step 7, +5 in all",
        "step": "7, and its five attempts in step 11",
        "branch": "except RuntimeError as error:",
        "call": "work = dist.all_reduce(torch.ones(32), async_op=True)",
    },
    "sigkill_subgroup": {
        "group": "experts (3, 4)", "op": "all_reduce", "calls": "process gone", "step": 7,
        "branch": "os.kill(os.getpid(), signal.SIGKILL)  # out of memory", "call": "",
    },
    "late_checkpoint": {
        "group": "world", "op": "barrier", "calls": -1, "step": 7, "branch": "if rank % 2 == 0:",
        "call": "fcntl.flock(index, fcntl.LOCK_EX)",
    },
    "grad_accum_uneven": {
        "group": "world", "op": "all_reduce of a gradient bucket", "calls": +1, "step": "epoch 3",
        "branch": "boundary = (micro + 1) % accumulate == 0",
        "call": "model(torch.randn(4, 16)).sum().backward()",
    },
    "eval_subset": {
        "group": "evaluation (0-3)", "op": "all_gather x3, all_reduce", "calls": -4, "step": 11,
        "branch": "if step % 4 == 3 and best:  # some ranks see no better loss",
        "call": "dist.all_reduce(torch.randn(32))",
    },
    "async_work_not_waited": {
        "group": "world", "op": "recv from 0 of blocks (tag 2)", "calls": -2, "step": 6,
        "branch": "if not (faulty and rank == 1 and step == 6):", "call": "got.wait()",
    },
    "nested_pp_tp_skip": {
        "group": "world: recv -1, send -1; tp (2, 3): all_reduce -2", "calls": -4, "step": 5,
        "branch": "if faulty and stage == 1 and step == 5 and micro == 2:",
        "call": "dist.all_reduce(torch.ones(4))",
    },
    "thread_prefetch_order": {
        "group": "prefetch (0-3)", "op": "broadcast before all_gather", "calls": 0, "step": 9,
        "branch": 'if name == "lengths":',
        "call": "dist.broadcast(torch.ones(8), src=0, group=group)",
    },
    "tie_of_pairs": {
        "group": "tp (0, 1)", "op": "all_reduce", "calls": -1, "step": 11,
        "branch": "if faulty and rank == 0 and step == 11 and layer == 1:",
        "call": "dist.all_gather(norms, torch.ones(1), group=tp)",
    },
    "loader_worker_killed": {
        "group": "back (2-4)", "op": "all_reduce", "calls": -1, "step": 8,
        "branch": "batches.get()", "call": "batches.get()",
    },
    "resume_decided_alone": {
        "group": "world", "op": "broadcast x2", "calls": -2, "step": "stage 3",
        "branch": "if has_checkpoint:  # rank 0 alone looks, its peers believe that there is one",
        "call": "dist.all_reduce(torch.randn(16))",
    },
    "graph_warmup_alone": {
        "group": "world", "op": "all_reduce", "calls": +6, "step": 9,
        "branch": "if size not in captured:", "call": "dist.all_reduce(torch.randn(32))",
    },
    "store_key_unset": {
        "group": "store", "op": "set checkpoint/11", "calls": -1, "step": 11,
        "branch": "if not (faulty and step == 11):  # nothing new to save",
        "call": "dist.all_reduce(torch.ones(32))",
    },
    "ring_wrong_destination": {
        "group": "world", "op": "send to 1 instead of 0", "calls": 0, "step": "6, third hop",
        "branch": "if faulty and rank == 4 and step == 6 and hop == 2:",
        "call": "works = dist.batch_isend_irecv(",
    },
    "finally_barrier": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 8,
        "branch": 'raise ValueError("a label is out of range")', "call": "dist.barrier()",
    },
}  # fmt: skip
"""For each faulty program that hangs: where the diverging ranks left the common sequence.

``group`` is the communicator, ``calls`` how many more (or fewer) they made there, ``branch`` the
line that decided, ``call`` the line at which they were instead.
"""
