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
    LATE,
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

_TABLE = [
    # Training
    Program(
        "nan_skip_ddp", "torch",
        "rank 3 leaves out the backward pass of one step, its loss being no number",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "loader_resume_offset", "torch",
        "rank 2 counts its batches from one more on than its peers, and so ends a batch early",
        (2,), (*ABSENT, "op_mismatch"), world=5,
    ),
    Program(
        "gan_skip_discriminator", "torch",
        "rank 0 leaves out the backward pass of its discriminator in one round; that shows at the "
        "end, since all gradients have one size",
        (0,), (*ABSENT, *ORDER), world=3,
    ),
    Program(
        "main_first_nested", "torch",
        "rank 0 enters main_process_first() within main_process_first(), and so has one barrier "
        "more",
        (0,), (*ALONE, *ORDER),
    ),
    Program(
        "plateau_cooldown_state", "torch",
        "rank 4 leaves out the sum of one epoch's loss, its schedule being at rest",
        (4,), (*ABSENT, *ORDER), world=5,
    ),
    Program(
        "fsdp2_text_only_batch", "torch",
        "rank 1 leaves out the tower for images in one step, its batch holding text alone",
        (1,), (*ABSENT, *ORDER),
    ),
    Program(
        "eval_group_default", "torch",
        "rank 1 sums one metric over all ranks instead of over the two that evaluate",
        # Ranks 0 and 1 wait in one line, and stacks show no group.
        (1,), ("comm_swap", *ABSENT, *ALONE), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "token_window_cap", "torch",
        "rank 2 leaves the accumulation of one step at a limit of its own, and asks no more "
        "whether all have enough",
        (2,), (*ABSENT, *ORDER), world=6,
    ),
    Program(
        "vocab_pad_multiple", "torch",
        "rank 2 pads the embedding to another size; gloo aborts",
        (2,), ("size_mismatch",), ends=True, world=3,
    ),
    Program(
        "packing_search_busy", "torch",
        "rank 4 moves a document to and fro between two rows for ever",
        (4,), LATE, busy=(4,), most="likely", unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "replica_stop_and_skip", "torch",
        "two faults: rank 5 stops itself with SIGSTOP, rank 0 leaves out the gradients of a layer",
        (0, 5), (*ABSENT, *HALT, *ORDER), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "healthy_hub_upload", "torch",
        "nothing: rank 0 uploads for 16 s while its peers wait in a barrier, again and again",
        hangs=False, world=3,
    ),
    # Frameworks
    Program(
        "ema_counter_skip", "torch",
        "rank 2 does not count one update, and so shares its average one step later",
        (2,), (*ABSENT, *ORDER),
    ),
    Program(
        "eplb_step_counter", "torch",
        "rank 6 counts one step twice, and so rearranges experts one step before its group",
        (6,), (*ALONE, *ORDER), world=8,
    ),
    Program(
        "ulysses_fallback_gather", "torch",
        "rank 3 gathers in one layer instead of exchanging heads",
        (3,), (*ALONE, "missing_call"),
    ),
    Program(
        "rl_wake_weights", "torch",
        "rank 0 is awake already, and gathers no weights in one iteration",
        # Two of its group gather, and the other group is through; stacks show no groups.
        (0,), (*ABSENT, *ORDER), undecided_untraced=(0, 1, 2), world=6,
    ),
    Program(
        "ps_parked_by_clock", "torch",
        "rank 0, the server, forgets one of two workers that it has parked at the same clock, and "
        "never answers",
        # All wait to receive, and no call shows which worker the server was to answer.
        (0,), (*PIPELINE, "stalled", "order_cycle"), undecided=_FIVE, unknown_in=(UNTRACED,),
        world=5,
    ),
    Program(
        "dtensor_placement_plan", "torch",
        "rank 1 has one weight as a whole, and so leaves out the all_gather that makes it whole",
        (1,), (*ABSENT, *ORDER),
    ),
    Program(
        "zero_partition_owner", "torch",
        "rank 0 has another table of owners from step 6 on, and reduces to other ranks",
        # All wait in one line, and stacks show no roots.
        (0,), ("root_mismatch",), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "tied_embedding_last", "torch",
        "rank 5 does not add up the embedding's gradients with rank 0, which it shares them with",
        # One against one, in the first step: no record shows which of them is right.
        (5,), (*ABSENT, *ORDER), undecided=(0, 5), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "healthy_tool_sandbox", "torch",
        "nothing: in each iteration another rank waits for a child of 9 s and ends it",
        hangs=False,
    ),
    # Inference
    Program(
        "engine_empty_step", "torch",
        "rank 3 leaves out a step without tokens, which its peers run with a dummy",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "control_double_ack", "torch",
        "rank 1 acknowledges one control message twice",
        (1,), (*ALONE, *ORDER), world=5,
    ),
    Program(
        "logits_all_gather", "torch",
        "rank 0 calls all_gather for the logits of the first step, its peers gather",
        (0,), (*ALONE, "missing_call"), world=3,
    ),
    Program(
        "lost_wakeup_engine", "torch",
        "the main thread of rank 0 waits for a notification that came before it waited",
        (0,), (*HALT, "missing_call"),
    ),
    Program(
        "shm_reader_flag", "torch",
        "rank 2 catches an IndexError before the calls of one step, and polls for the next message",
        (2,), (*ABSENT, *HALT), busy=(2,), world=3,
    ),
    # Point to point
    Program(
        "kv_value_first", "torch",
        "rank 1 sends values before keys from request 8 on, rank 3 expects keys first",
        # Tags say only that the two differ.
        (1,), ("p2p_mismatch", "order_cycle", "stalled"), undecided=(1, 3),
        undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "pipe_eval_backward", "torch",
        "rank 2 sends rank 1 a gradient after an evaluation, and rank 1 waits for none",
        (2,), (*PIPELINE, "extra_call"), undecided_untraced=(1, 2), world=5,
    ),
    Program(
        "halo_periodic_edge", "torch",
        "rank 5 exchanges its edge with rank 0 as well from step 17 on",
        # Both ends of that edge would have to change; one has, and one has not.
        (5,), (*PIPELINE, "extra_call"), undecided=(0, 5), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "ring_local_rank", "torch",
        "rank 4 sends to rank 2 and receives from rank 0, group ranks taken for global ones",
        (4,), PIPELINE, undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "recursive_doubling_fold", "torch",
        "rank 5 does not take the sum from rank 1 in one step",
        (5,), PIPELINE, undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "token_nobody_starts", "torch",
        "rank 0 waits for the token that it was to start with, as all ranks do",
        # No rank departs from what its peers do, and there is no step before.
        (0,), (*PIPELINE, "stalled", "order_cycle"), undecided=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "gossip_partner_seed", "torch",
        "rank 2 has drawn once more than its peers, and exchanges with rank 5 while rank 4 waits "
        "for it",
        # Partners are drawn at random; ranks 4 and 5 are those that disagree with it.
        (2,), PIPELINE, undecided=(2, 4, 5), undecided_untraced=_SIX, unknown_in=(UNTRACED,),
        world=6,
    ),
    Program(
        "healthy_uneven_pipeline", "torch",
        "nothing: rank 2 computes for 5 to 13 s in each microbatch, its peers wait",
        hangs=False,
    ),
    # Threads, processes, files, stores, signals
    Program(
        "store_lock_owner", "torch",
        "rank 2 leaves an exception with the lock of the store taken; its peers ask for the lock "
        "for ever, and rank 2 is in the all_reduce after it",
        # Nothing shows who holds the lock: rank 2 is where all ought to be.
        (2,), (*HALT, *ABSENT), undecided=_ALL, also=((0, 1, 3),), busy=(0, 1, 3),
        unknown_in=(ATTACH, WATCH, DIAGNOSE, UNTRACED),
    ),
    Program(
        "exit_before_done_file", "torch",
        "rank 3 ends with os._exit() in a checkpoint; its peers poll for its mark",
        # Untraced, nothing is left of rank 3.
        (3,), ("dead_rank",), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "asyncio_task_lost", "torch",
        "the task of rank 0 that fetches died of a JSON error, and the engine waits for its queue",
        (0,), (*HALT, "missing_call"), world=3,
    ),
    Program(
        "debugger_wait_client", "torch",
        "rank 1 waits for a debugger before init_process_group",
        (1,), (*HALT, "init_stalled", "dead_rank"), undecided=(0, 1, 2),
        undecided_in=(DIAGNOSE, WATCH), unknown_in=(DIAGNOSE, WATCH), world=3,
    ),
    Program(
        "alarm_timeout_swallow", "torch",
        "rank 0 leaves out a step that a timer has interrupted; that shows at the end, since all "
        "steps are alike",
        (0,), (*ABSENT, *ORDER),
    ),
    Program(
        "healthy_file_claims", "torch",
        "nothing: ranks claim files of 3 to 24 s and meet when there are none left",
        hangs=False, world=5,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers4/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "nan_skip_ddp": {
        "group": "world", "op": "all_reduce of the buckets", "calls": -1, "step": 6,
        "branch": "if not torch.isfinite(loss):",
        "call": "loss = nn.functional.cross_entropy(model(rows), labels)",
    },
    "loader_resume_offset": {
        "group": "world", "op": "broadcast of an object, scatter, all_reduce", "calls": "-1 each",
        "step": "the last", "branch": "while self.seen < BATCHES:", "call": "dist.barrier()",
    },
    "gan_skip_discriminator": {
        "group": "world", "op": "all_reduce of a bucket", "calls": -1, "step": "9, or later",
        "branch": "if loss.item() >= STRONG:", "call": "dist.broadcast(sample, src=0)",
    },
    "main_first_nested": {
        "group": "world", "op": "barrier", "calls": +1, "step": "start",
        "branch": 'if not cached("tokenizer"):', "call": "dist.barrier() of main_process_first()",
    },
    "plateau_cooldown_state": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "epoch 14",
        "branch": "if self.rest:", "call": "dist.broadcast(self.weights, src=0)",
    },
    "fsdp2_text_only_batch": {
        "group": "world", "op": "all_gather and reduce_scatter of the tower", "calls": "-2 each",
        "step": 5, "branch": "if images is not None:",
        "call": "model(*batch(rank, step)).square().mean().backward()",
    },
    "eval_group_default": {
        "group": "evaluators (0, 1): -1; world: +1", "op": "all_reduce", "step": "epoch 5",
        "branch": 'meters["top5"] = Meter()',
        "call": "dist.all_reduce(self.counts, group=self.group)",
    },
    "token_window_cap": {
        "group": "world", "op": "all_reduce MIN", "calls": "-12 or so", "step": 7,
        "branch": "if faulty and rank == 2 and window.capped:",
        "call": "dist.broadcast(torch.ones(3), src=0)",
    },
    "vocab_pad_multiple": {
        "group": "world", "op": "all_reduce [336, 4] instead of [384, 4]", "calls": 0,
        "step": "stage 2", "branch": "embedding.grow(more=10, multiple=multiple(rank))",
        "call": "dist.all_reduce(embedding.gradient)",
    },
    "packing_search_busy": {
        "group": "world", "op": "all_reduce MAX", "calls": "late", "step": 11,
        "branch": "while self.spread() > tolerance:", "call": "a line of pack(), move(), spread()",
    },
    "replica_stop_and_skip": {
        "group": "replica (0-2): -1 of 0; replica (3-5): 5 never comes", "op": "all_reduce",
        "step": 6, "branch": "if layer in self.frozen: of 0; if self.free < 10: of 5",
        "call": "0: dist.all_reduce(torch.ones(2)); 5: os.kill(os.getpid(), signal.SIGSTOP)",
    },
    "ema_counter_skip": {
        "group": "world", "op": "broadcast x4", "calls": "-4, later", "step": "13, seen in 15",
        "branch": "if spike:", "call": "dist.all_reduce(gradient)",
    },
    "eplb_step_counter": {
        "group": "experts (4-7)", "op": "all_reduce of the load", "calls": "early",
        "step": "16: one before its group", "branch": "if self.steps >= INTERVAL:",
        "call": "dist.all_reduce(self.load, group=self.group)",
    },
    "ulysses_fallback_gather": {
        "group": "world", "op": "all_gather instead of all_to_all", "calls": 0,
        "step": "8, second layer", "branch": "if rows.shape[1] % self.world == 0:",
        "call": "dist.all_gather(parts, rows)",
    },
    "rl_wake_weights": {
        "group": "tensor (0-2)", "op": "all_gather", "calls": -1, "step": "iteration 6",
        "branch": "if self.awake:", "call": "dist.all_reduce(hidden, group=self.group)",
    },
    "ps_parked_by_clock": {
        "group": "world", "op": "send to a parked worker", "calls": -1, "step": "from 3 on",
        "branch": "self.parked[clock if faulty else worker] = (worker, clock)",
        "call": "worker = dist.recv(message)",
    },
    "dtensor_placement_plan": {
        "group": "world (tp)", "op": "all_gather", "calls": -1, "step": 7,
        "branch": "whole = weight.redistribute(placements=[Replicate()]).to_local()",
        "call": "whole = weight.redistribute(...) of the next weight, or dist.all_reduce(rows)",
    },
    "zero_partition_owner": {
        "group": "world", "op": "reduce to another rank", "calls": 0, "step": 6,
        "branch": "rows = 60 if faulty and rank == 0 else 6",
        "call": "dist.reduce(torch.randn(size), dst=self.partition.owners[name])",
    },
    "tied_embedding_last": {
        "group": "ends (0, 5)", "op": "all_reduce", "calls": -1, "step": 0,
        "branch": "if tied and self.rank in (0, self.last):",
        "call": "dist.all_reduce(torch.rand(1))",
    },
    "engine_empty_step": {
        "group": "world", "op": "all_reduce", "calls": -3, "step": "request 7",
        "branch": "if faulty and self.rank == 3 and not schedule.tokens:",
        "call": "dist.broadcast_object_list(message, src=0)",
    },
    "control_double_ack": {
        "group": "world", "op": "gather of an object", "calls": +1, "step": "a reset",
        "branch": "if faulty and self.rank == 1 and 9 in self.cache:",
        "call": "dist.gather_object(text, answers if self.rank == 0 else None, dst=0)",
    },
    "logits_all_gather": {
        "group": "world", "op": "all_gather instead of gather", "calls": 0, "step": 0,
        "branch": "if self.platform.has_gather:", "call": "dist.all_gather(parts, logits)",
    },
    "lost_wakeup_engine": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 9,
        "branch": "self.condition.wait()", "call": "self.condition.wait()",
    },
    "shm_reader_flag": {
        "group": "world", "op": "all_reduce x2", "calls": -2, "step": 17,
        "branch": "rows = rows[:, torch.tensor([9])]",
        "call": "while self.memory[0] <= last: or time.sleep(0.001)",
    },
    "kv_value_first": {
        "group": "world", "op": "send of tag 2 before tag 1", "calls": 0, "step": "request 8",
        "branch": "connector.order = (VALUE, KEY)",
        "call": "dist.send(torch.randn(blocks, 8), dst=self.peer, tag=10 * layer + kind)",
    },
    "pipe_eval_backward": {
        "group": "world", "op": "send to 1", "calls": +1, "step": 11,
        "branch": "while self.kept:", "call": "dist.send(gradient, dst=self.before)",
    },
    "halo_periodic_edge": {
        "group": "world", "op": "recv from 0 and send to 0", "calls": "+1 each", "step": 17,
        "branch": "elif self.periodic:", "call": "work.wait()",
    },
    "ring_local_rank": {
        "group": "world", "op": "send to 2 and recv from 0 instead of 5 and 3", "calls": 0,
        "step": 6, "branch": "base = 0", "call": "received.wait()",
    },
    "recursive_doubling_fold": {
        "group": "world", "op": "recv from 1", "calls": -1, "step": 10,
        "branch": "if result_used:", "call": "dist.send(part, dst=self.rank - self.core)",
    },
    "token_nobody_starts": {
        "group": "world", "op": "recv from 3 before the first send", "calls": +1, "step": 0,
        "branch": "if self.first:", "call": "dist.recv(torch.empty(1), src=self.before)",
    },
    "gossip_partner_seed": {
        "group": "world", "op": "send to and recv from 5 instead of 4", "calls": 0, "step": 13,
        "branch": "self.random.random()", "call": "work.wait()",
    },
    "store_lock_owner": {
        "group": "store", "op": "set lock", "calls": -1, "step": "epoch 3",
        "branch": "if size <= 0:", "call": "dist.all_reduce(torch.randn(12))",
    },
    "exit_before_done_file": {
        "group": "world", "op": "all_reduce", "calls": "none any more", "step": 11,
        "branch": "if len(content) > quota:", "call": "os._exit(28)",
    },
    "asyncio_task_lost": {
        "group": "world", "op": "all_reduce MAX", "calls": -1, "step": 10,
        "branch": "request = json.loads(await self.source.line())",
        "call": "length = torch.tensor([await self.batches.get()])",
    },
    "debugger_wait_client": {
        "group": "store", "op": "init_process_group", "calls": -1, "step": "start",
        "branch": "if not self.wanted:", "call": "connection, _ = server.accept()",
    },
    "alarm_timeout_swallow": {
        "group": "world", "op": "all_reduce, broadcast", "calls": "-1 each", "step": "9, or later",
        "branch": "except TooSlow:", "call": "dist.barrier()",
    },
}  # fmt: skip
"""For each faulty program that hangs: where the diverging ranks left the common sequence.

``group`` is the communicator, ``calls`` how many more (or fewer) they made there, ``branch`` the
line that decided, ``call`` the line at which they were instead.
"""
