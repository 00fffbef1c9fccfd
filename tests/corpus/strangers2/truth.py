"""What is wrong in each program of this folder: written before any tool was run on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.corpus.runner.truth import (
    ABSENT,
    ALONE,
    HALT,
    LATE,
    ORDER,
    PIPELINE,
    UNTRACED,
    Program,
)

__all__ = ["PROGRAMS", "STORIES"]

_ALL = (0, 1, 2, 3)
_FIVE = (*_ALL, 4)
_SIX = (*_FIVE, 5)

_TABLE = [
    Program(
        "cp_ring_chunks", "torch",
        "rank 1 passes its keys on over one hop instead of two",
        # Each step before had two hops, of all three ranks.
        (1,), PIPELINE, undecided_untraced=(0, 1, 2), unknown_in=(UNTRACED,), world=3,
    ),
    Program(
        "moe_empty_expert", "torch",
        "rank 5 has no tokens for one layer and returns before they are combined",
        (5,), (*ABSENT, *ORDER), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "layerdrop_generator", "torch",
        "rank 2 has drawn one random number more than its peers, and drops other layers",
        # Rank 3 does what the other pair does, layer by layer; stacks show two against two.
        (2,), (*ABSENT, *ALONE), undecided=(2, 3), undecided_untraced=_ALL,
    ),
    Program(
        "amp_dtype", "torch",
        "rank 4 gathers gradients in bfloat16, its peers in float32; gloo aborts it",
        (4,), ("dtype_mismatch",), ends=True, world=5,
    ),
    Program(
        "stale_group", "torch",
        "rank 3 goes on with the group that its peers have replaced by a new one",
        # All are at one line.
        (3,), (*ABSENT, *ALONE, "order_cycle", "comm_swap"), undecided_untraced=_FIVE,
        unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "clip_norm_missing", "torch",
        "rank 0 leaves out the all_reduce of one norm, having no such gradient",
        (0,), (*ABSENT, *ORDER), undecided_untraced=_ALL,
    ),
    Program(
        "gather_other_root", "torch",
        "rank 2 gathers a checkpoint on rank 1, its peers on rank 0",
        # Rank 0 waits for rank 2; stacks show no roots.
        (2,), ("root_mismatch",), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "reward_rounds", "torch",
        "ranks 3, 4 and 5 expect one more round of samples than ranks 0, 1 and 2 send",
        # The number of rounds varies from step to step; each side may be the wrong one.
        (3, 4, 5), (*PIPELINE, "extra_call"), undecided=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "wait_before_send", "torch",
        "rank 1 waits for an all_reduce of all before it sends what rank 0 needs to join",
        (1,), ("order_cycle", "p2p_mismatch", "not_joined", "missing_call"), undecided=(0, 1),
        undecided_untraced=(0, 1, 2), unknown_in=(UNTRACED,), world=3,
    ),
    Program(
        "warmup_extra", "torch",
        "rank 1 expects a sixth microbatch forward, all others have five",
        # Each step before had five; rank 2 got all it needs from rank 1, and so did rank 0.
        (1,), (*PIPELINE, "extra_call"), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "object_list_or_tensor", "torch",
        "rank 2 takes the settings in one broadcast, its peers in the two of an object",
        (2,), (*ABSENT, *ORDER, "dtype_mismatch"), undecided_untraced=(0, 1, 2), world=3,
    ),
    Program(
        "monitored_barrier_left_out", "torch",
        "rank 3 leaves out an evaluation, which begins with a monitored barrier",
        (3,), (*ABSENT, *ALONE),
    ),
    Program(
        "barrier_other_group", "torch",
        "rank 4 meets its tensor parallel group in a barrier, instead of rank 1",
        # Rank 1 waits in the barrier of the pair; ranks 3 and 5 reduce, or are in that group too.
        (4,), (*ABSENT, *ALONE, "comm_swap", "order_cycle"), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "thread_default_group", "torch",
        "the thread of rank 1 gathers after the main thread has posted the barrier, on one group",
        (1,), (*ORDER, *ABSENT), undecided_untraced=_ALL,
    ),
    Program(
        "host_queue_empty", "torch",
        "rank 2 hands no shard to rank 3 in one step and goes on; rank 3 waits at the socket",
        # No record shows whose socket that is.
        (3,), HALT, undecided=(2, 3), also=((2,), (2, 3)),
    ),
    Program(
        "retry_download", "torch",
        "rank 0 asks a server that is gone again and again, with sleeps",
        (0,), (*HALT, *LATE), world=3, busy=(0,), unknown_in=(UNTRACED,),
    ),
    Program(
        "signal_checkpoint", "torch",
        "rank 2 alone gets a signal and posts a barrier and an all_gather in the handler",
        (2,), ALONE, undecided_untraced=_ALL,
    ),
    Program(
        "early_stop_pair", "torch",
        "ranks 2 and 3 stop early on the loss of their pair and gather tests",
        (2, 3), (*ABSENT, *ALONE), world=6,
    ),
    Program(
        "speculative_bound", "torch",
        "rank 1 accepts one token fewer than rank 0",
        # One against one, and the number varies from request to request.
        (1,), (*ABSENT, *ORDER, "extra_call"), undecided=(0, 1), world=2,
    ),
    Program(
        "three_faults", "torch",
        "ranks 1 and 4 leave out an all_reduce of their pairs, rank 2 posts one more",
        # Each is one against one; all steps before had three in each pair.
        (1, 2, 4), (*ABSENT, *ALONE), undecided=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "drop_last_differs", "torch",
        "rank 2 keeps the last short batch of an epoch, its peers drop it",
        (2,), ALONE, undecided_untraced=_FIVE, world=5,
    ),
    Program(
        "healthy_native_minutes", "torch",
        "nothing: rank 2 is in one native call for minutes, and its peers wait",
        hangs=False, world=3,
    ),
    Program(
        "healthy_changing_loops", "torch",
        "nothing: the lengths of two nested loops change in each step, on all ranks alike",
        hangs=False,
    ),
    Program(
        "healthy_uneven_transfers", "torch",
        "nothing: workers get unequal numbers of chunks, some none, and each is slow in turn",
        hangs=False, world=5,
    ),
    Program(
        "healthy_draft_pair", "torch",
        "nothing: ranks 1 and 2 make thousands of calls of their own while rank 0 waits",
        hangs=False, world=3,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers2/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "cp_ring_chunks": {
        "group": "world", "op": "send to 2, recv from 0", "calls": "-1 each", "step": 7,
        "branch": "for _ in range(hops):", "call": "dist.all_reduce(torch.randn(16))",
    },
    "moe_empty_expert": {
        "group": "ep (3-5)", "op": "all_to_all", "calls": -1, "step": "6, layer 1",
        "branch": "if tokens == 0:",
        "call": "dist.all_to_all_single(received, torch.randn(12), group=ep) of layer 2",
    },
    "layerdrop_generator": {
        "group": "tp (2, 3)", "op": "all_reduce", "step": "5, or one soon after it",
        "branch": "if generator.random() < 0.3:", "call": "dist.all_reduce",
    },
    "amp_dtype": {
        "group": "world", "op": "all_gather", "calls": 0, "step": "8, first of its three calls",
        "branch": "if faulty and rank == 4 and step == 8:",
        "call": "dist.all_gather(parts, gradient)",
    },
    "stale_group": {
        "group": "the third of ranks 0-4: calls -all; the second: as many more",
        "op": "all_reduce", "step": 9, "branch": "if not keep:",
        "call": "dist.all_reduce(torch.randn(48), group=mesh.group)",
    },
    "clip_norm_missing": {
        "group": "world", "op": "all_reduce of a norm", "calls": -1, "step": 8,
        "branch": "if gradient is not None:", "call": "dist.all_gather(weights, torch.randn(32))",
    },
    "gather_other_root": {
        "group": "world", "op": "gather", "calls": 0, "step": 11,
        "branch": "if faulty and rank == 2 and step == 11:",
        "call": "dist.gather(part, parts, dst=writer)",
    },
    "reward_rounds": {
        "group": "world", "op": "recv from 0, 1, 2", "calls": +1, "step": 6,
        "branch": "for _ in range(rounds):", "call": "dist.recv(torch.empty(32), src=rank - 3)",
    },
    "wait_before_send": {
        "group": "world", "op": "send to 0", "calls": "0, but late", "step": 8,
        "branch": "if faulty and step == 8:", "call": "work.wait()",
    },
    "warmup_extra": {
        "group": "world", "op": "recv from 0", "calls": +1, "step": 5,
        "branch": "for _ in range(warmup):", "call": "dist.recv(torch.empty(32), src=stage - 1)",
    },
    "object_list_or_tensor": {
        "group": "world", "op": "broadcast", "calls": -1, "step": 7, "branch": "if packed:",
        "call": "dist.broadcast(torch.zeros(16, dtype=torch.uint8), src=0)",
    },
    "monitored_barrier_left_out": {
        "group": "world", "op": "monitored_barrier, all_gather", "calls": -2, "step": 11,
        "branch": "if due:", "call": "dist.all_reduce(torch.randn(32))",
    },
    "barrier_other_group": {
        "group": "dp (1, 4): -1; tp (3-5): +1", "op": "barrier", "step": 8,
        "branch": "if faulty and rank == 4 and step == 8:", "call": "dist.barrier(group=fence)",
    },
    "thread_default_group": {
        "group": "world", "op": "barrier before all_gather", "calls": 0, "step": 8,
        "branch": "if not late:", "call": "dist.barrier()",
    },
    "host_queue_empty": {
        "group": "", "op": "bytes from rank 2 on a socket", "calls": -1, "step": 7,
        "branch": "if rank == 2 and queue and not (faulty and step == 7):",
        "call": "queue.recv(8) of rank 3",
    },
    "retry_download": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 7, "branch": "except OSError:",
        "call": "time.sleep(0.3)",
    },
    "signal_checkpoint": {
        "group": "world", "op": "barrier, all_gather", "calls": +2, "step": 7,
        "branch": "os.kill(os.getpid(), signal.SIGUSR2)", "call": "dist.barrier() of save()",
    },
    "early_stop_pair": {
        "group": "dp (0, 2, 4) and (1, 3, 5)", "op": "all_reduce", "calls": "-6 each",
        "step": "epoch 4", "branch": "if loss.item() > 4:",
        "call": "dist.all_gather(tests, torch.randn(16), group=dp)",
    },
    "speculative_bound": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "request 7",
        "branch": "for _ in range(accepted):", "call": "dist.all_gather(logits, torch.randn(32))",
    },
    "three_faults": {
        "group": "tp of each", "op": "all_reduce", "calls": "1 and 4: -1; 2: +1",
        "step": "6, layer 1", "branch": "if attention: of 1 and 4; if probe: of 2",
        "call": "1 and 4: dist.all_gather; 2: the second dist.all_reduce",
    },
    "drop_last_differs": {
        "group": "world", "op": "all_reduce x2", "calls": +2, "step": "epoch 2",
        "branch": "for (batch,) in loader:", "call": "dist.all_reduce(batch.sum(0))",
    },
}  # fmt: skip
"""For each faulty program that hangs: where the diverging ranks left the common sequence.

``group`` is the communicator, ``calls`` how many more (or fewer) they made there, ``branch`` the
line that decided, ``call`` the line at which they were instead.
"""
