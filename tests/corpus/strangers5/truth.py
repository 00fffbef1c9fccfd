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
_ANY_WAY = (ATTACH, WATCH, DIAGNOSE, UNTRACED)

_TABLE = [
    # Training
    Program(
        "syncnorm_left_eval", "torch",
        "rank 3 stays in evaluation after a preview, and gathers no means any more",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "hook_frozen_pattern", "torch",
        "rank 4 freezes three layers instead of one, and so reduces two gradients fewer",
        (4,), (*ABSENT, *ORDER), world=5,
    ),
    Program(
        "recompute_memory_estimate", "torch",
        "rank 1 computes one layer fewer again in the backward pass, with the sum in it",
        (1,), (*ABSENT, *ORDER),
    ),
    Program(
        "fsdp2_reshard_differs", "torch",
        "rank 0 keeps one block more as a whole, and does not gather it in the backward pass",
        (0,), (*ABSENT, *ORDER), world=3,
    ),
    Program(
        "fsdp2_adapter_filter", "torch",
        "rank 3 leaves out three of nine weights of a checkpoint",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "dtensor_empty_shard", "torch",
        "rank 4 has no row of a weight any more, and returns before the weight is gathered",
        (4,), (*ABSENT, *ORDER), world=5,
    ),
    Program(
        "ddp_hook_warmup", "torch",
        "rank 2 is one step longer in the warmup of its hook: all_reduce instead of all_gather",
        # All wait in one line of backward(), for calls that the reducer posts in C++.
        (2,), (*ORDER, *ABSENT, "extra_call"), undecided_untraced=_ALL,
    ),
    Program(
        "oom_retry_halves", "torch",
        "rank 5 splits one batch, and so has one all_reduce more before the next broadcast",
        # Four peers have left the broadcast and are in the line of rank 5; stacks show no counts.
        (5,), (*ALONE, *ORDER), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "chunked_loss_local_len", "torch",
        "rank 0 has one chunk fewer than its group, by a length of its own",
        # Two of its group are in the chunk, the other group is through; stacks show no groups.
        (0,), (*ABSENT, *ORDER), undecided_untraced=(0, 1, 2), world=6,
    ),
    Program(
        "pp_schedule_mixed", "torch",
        "rank 1 runs GPipe, the other stages 1F1B",
        # It is so from the first step on: rank 0 may be to blame as well as rank 1.
        (1,), (*PIPELINE, "stalled", "order_cycle"), undecided=_ALL, unknown_in=(UNTRACED,),
    ),
    # Inference, rollouts and services
    Program(
        "tp_abort_timeout", "torch",
        "rank 1 drops a request by a clock that is ahead, and leaves out its three sums",
        (1,), (*ABSENT, *ORDER),
    ),
    Program(
        "encoder_cache_evicts", "torch",
        "rank 0 has dropped the features of an image, and encodes it again alone",
        (0,), (*ALONE, *ORDER), world=5,
    ),
    Program(
        "kv_transfer_abort", "torch",
        "rank 3 leaves out a request with its recv and its sums; ranks 0, 1 and 2 run it",
        # Tags alone show which request is meant, and no ring holds them; stacks show no peers.
        (3,), (*PIPELINE, *ORDER, "stalled"), undecided=(1, 3), undecided_in=(WATCH, DIAGNOSE),
        undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "weight_bucket_count", "torch",
        "rank 2 expects one bucket of weights more than rank 0 sends",
        (2,), (*ALONE, *ORDER),
    ),
    Program(
        "reward_reply_address", "torch",
        "rank 1, the server, sends all answers of one round to one client",
        # Two clients without an answer and one with too many: all speak with rank 1 alone.
        (1,), (*PIPELINE, "extra_call", "stalled", "order_cycle"), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "http_self_call", "torch",
        "rank 0 waits for its own service, whose only thread asks that service itself",
        (0,), (*HALT, "missing_call"), world=3,
    ),
    # Point to point
    Program(
        "halo_converged_block", "torch",
        "rank 4 leaves out the exchange with rank 1 in one sweep; that shows at the next sum",
        # All other pairs have made as many exchanges as there were sweeps.
        (4,), PIPELINE, undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "ring_causal_skip", "torch",
        "rank 0 leaves the ring after its first hop: both neighbours miss it",
        (0,), (*PIPELINE, *ORDER), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "exchange_both_send", "torch",
        "rank 3 sends first from step 9 on, as its peer rank 2 does",
        # Rank 3 has received first nine times, and so do ranks 1 and 5 still.
        (3,), (*PIPELINE, "stalled", "order_cycle"), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "multicast_dead_child", "torch",
        "rank 1 hands one version of the weights on to one child only, and not to rank 3",
        (1,), PIPELINE, undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "steal_empty_reply", "torch",
        "rank 2 takes a request of rank 1 and does not answer it",
        (2,), PIPELINE, undecided_untraced=_FIVE, unknown_in=(UNTRACED,), world=5,
    ),
    # Threads, coroutines, processes, files
    Program(
        "asyncio_two_producers", "torch",
        "rank 3 posts all_gather before all_reduce in one step",
        (3,), (*ORDER, "extra_call", *ABSENT),
    ),
    Program(
        "lock_order_abba", "torch",
        "two threads of rank 1 take two locks in opposite orders",
        (1,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "nested_executor", "torch",
        "rank 4 waits for a task of its pool that waits for another task of the same thread",
        (4,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "saver_thread_raises", "torch",
        "the thread of rank 2 raises before the calls of one checkpoint; that shows at the end, "
        "when its peers wait for their last one",
        (2,), ABSENT,
    ),
    Program(
        "file_locks_crossed", "torch",
        "rank 3 locks two files in the opposite order to rank 1; both wait for each other",
        # Both are in flock(), and no record shows which of the orders is right.
        (3,), (*HALT, "order_cycle", "missing_call"), undecided=(1, 3), also=((1, 3),),
    ),
    Program(
        "group_recreated_alone", "torch",
        "rank 1 has dropped a group and makes it anew, its peers use the old one",
        # Rank 1 is in new_group(), its peers in a call: that shows in stacks as well.
        (1,), ("init_stalled", *ABSENT, *ALONE, *HALT, *ORDER),
    ),
    Program(
        "manager_queue_pill", "torch",
        "rank 0 puts no end into the queue of rank 2, which waits for it; all others are through",
        # What shows is rank 2, which does not come. That rank 0 is to blame is in no record.
        (0,), (*HALT, *ABSENT), undecided=_ALL, also=((2,),),
    ),
    # Two faults
    Program(
        "two_halt_and_extra", "torch",
        "two faults: rank 1 waits for a child that waits for its input to end, rank 5 gathers once "
        "more than its group",
        (1, 5), (*HALT, *ALONE, *ORDER, "missing_call"), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "two_chains", "torch",
        "two faults: rank 1 does not hand one record on to rank 2, rank 3 sends one more to rank 4",
        # Numbers of messages between pairs, which agree in all rounds before.
        (1, 3), (*PIPELINE, "extra_call", "stalled"), undecided=(1, 2, 3, 4),
        undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "two_hybrid_shards", "torch",
        "two faults: rank 0 leaves out an all_gather of its shards, rank 4 calls all_reduce "
        "instead of all_to_all in its own",
        (0, 4), (*ABSENT, *ORDER, "extra_call"), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "two_search_and_event", "torch",
        "two faults: rank 2 draws samples for ever, rank 4 waits for an event that nobody sets",
        (2, 4), (*LATE, *HALT, "missing_call"), busy=(2,), undecided_untraced=_FIVE,
        unknown_in=(UNTRACED,), world=5,
    ),
    # Healthy
    Program(
        "healthy_idle_server", "torch",
        "nothing: rank 0 waits for clients in select(), one of its peers pauses for 14 s in turn",
        hangs=False,
    ),
    Program(
        "healthy_late_starters", "torch",
        "nothing: ranks 3 and 4 join the job 18 and 32 s after the others",
        hangs=False, world=5,
    ),
    Program(
        "healthy_evaluator_files", "torch",
        "nothing: rank 3 evaluates each checkpoint for 21 s, its peers wait for it at the end",
        hangs=False,
    ),
    Program(
        "healthy_gossip_idle", "torch",
        "nothing: one pair of six ranks speaks at a time, after 9 to 15 s of work of one of it",
        hangs=False, world=6,
    ),
    Program(
        "healthy_backoff_server", "torch",
        "nothing: rank 2 is turned away four times in an epoch and waits up to 14 s",
        hangs=False, world=3,
    ),
    Program(
        "healthy_rollout_tail", "torch",
        "nothing: one environment of another rank takes 18 s in each iteration",
        hangs=False, world=5,
    ),
    Program(
        "healthy_comm_threads", "torch",
        "nothing: a thread averages often and then seldom, main threads sleep 13 s in turn",
        hangs=False,
    ),
    Program(
        "healthy_store_epochs", "torch",
        "nothing: rank 0 prepares for 19 s, its peers wait for a key of the store",
        hangs=False, world=3,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers5/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "syncnorm_left_eval": {
        "group": "world", "op": "all_gather of the means", "calls": "-2 each", "step": "9, seen in "
        "10", "branch": "if picture.abs().max() > BRIGHT:", "call": "loss.backward()",
    },
    "hook_frozen_pattern": {
        "group": "world", "op": "all_reduce", "calls": "-2 each", "step": 6,
        "branch": "if re.match(pattern, name):",
        "call": "dist.all_gather(losses, loss.detach().reshape(1))",
    },
    "recompute_memory_estimate": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "7, backward",
        "branch": "if number < free:", "call": "dist.all_gather(norms, norm.reshape(1))",
    },
    "fsdp2_reshard_differs": {
        "group": "world", "op": "all_gather", "calls": -1, "step": "6, backward",
        "branch": "block.set_reshard_after_forward((number + 1) * BLOCK > budget)",
        "call": "model(torch.randn(4, 24)).square().mean().backward()",
    },
    "fsdp2_adapter_filter": {
        "group": "world", "op": "all_gather", "calls": -3, "step": 5,
        "branch": "if any(target in name for target in targets):",
        "call": "dist.broadcast(size, src=0)",
    },
    "dtensor_empty_shard": {
        "group": "world", "op": "all_gather", "calls": -1, "step": "3: sixteen rows",
        "branch": "if weight.to_local().numel() == 0:",
        "call": "dist.all_reduce(values, op=dist.ReduceOp.MAX)",
    },
    "ddp_hook_warmup": {
        "group": "world", "op": "all_reduce instead of all_gather", "calls": 0, "step": 8,
        "branch": "if not warm:",
        "call": "model(torch.randn(8, 16)).square().mean().backward(), or the all_reduce of the "
        "hook",
    },
    "oom_retry_halves": {
        "group": "world", "op": "all_reduce", "calls": +1, "step": "9, seen in 11",
        "branch": "except MemoryError:", "call": "dist.all_reduce(self.weights.grad)",
    },
    "chunked_loss_local_len": {
        "group": "vocabulary (0-2)", "op": "all_reduce MAX and SUM", "calls": "-1 each",
        "step": 11, "branch": "if bucket not in self.lengths:",
        "call": "dist.all_gather(values, value)",
    },
    "pp_schedule_mixed": {
        "group": "world", "op": "recv from 0 before recv from 2", "calls": 0, "step": 0,
        "branch": "kind = ScheduleGPipe if faulty and rank == 1 else Schedule1F1B",
        "call": "schedule.step()",
    },
    "tp_abort_timeout": {
        "group": "world", "op": "all_reduce", "calls": -3, "step": "tick 23",
        "branch": "while self.waiting and now - self.waiting[0][1] > LIMIT:",
        "call": "dist.broadcast_object_list(message, src=0)",
    },
    "encoder_cache_evicts": {
        "group": "world", "op": "all_gather (and all_reduce)", "calls": +1, "step": "image 5",
        "branch": "if image in self.cache:",
        "call": "dist.all_gather(parts, torch.full((24,), float(image)))",
    },
    "kv_transfer_abort": {
        "group": "world: recv from 1; decoding (2, 3): all_reduce", "op": "recv, all_reduce",
        "calls": "-1, -3", "step": "request 8", "branch": "if request in self.aborted:",
        "call": "dist.recv(cache, src=self.rank - 2, tag=request)",
    },
    "weight_bucket_count": {
        "group": "world", "op": "broadcast", "calls": +1, "step": "iteration 5",
        "branch": "for _ in range(self.buckets):",
        "call": "dist.broadcast(torch.empty(BUCKET // 2, dtype=torch.bfloat16), src=0)",
    },
    "reward_reply_address": {
        "group": "world", "op": "send to the last client", "calls": "+2 to it, -1 to the others",
        "step": "round 7", "branch": "for _, rows in batch:",
        "call": "dist.send(rows.mean().reshape(1), dst=client)  (the first of two such lines)",
    },
    "http_self_call": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 6,
        "branch": "if self.server.vocabulary is None:",
        "call": "with urlopen(f'http://127.0.0.1:{self.server_port}{path}') as answer:",
    },
    "halo_converged_block": {
        "group": "world", "op": "recv from 1 and send to 1", "calls": "-1 each",
        "step": "10, seen in 11", "branch": "if self.change < TOLERANCE:",
        "call": "dist.all_reduce(torch.tensor([block.change]), op=dist.ReduceOp.MAX)",
    },
    "ring_causal_skip": {
        "group": "world", "op": "send to 1 and recv from 3", "calls": "-2 each", "step": 6,
        "branch": "elif self.skip_masked:", "call": "dist.all_reduce(hidden.norm().reshape(1))",
    },
    "exchange_both_send": {
        "group": "world", "op": "send to 2 before recv from 2", "calls": 0, "step": 9,
        "branch": "if self.first:", "call": "dist.send(values, dst=self.peer)  (the first line)",
    },
    "multicast_dead_child": {
        "group": "world", "op": "send to 3", "calls": -1, "step": "version 11",
        "branch": "if child not in self.suspected:",
        "call": "dist.all_reduce(ready, op=dist.ReduceOp.MIN)",
    },
    "steal_empty_reply": {
        "group": "world", "op": "send to 1", "calls": -1, "step": "round 9",
        "branch": "if not self.queue:", "call": "dist.barrier()",
    },
    "asyncio_two_producers": {
        "group": "world", "op": "all_gather before all_reduce", "calls": 0, "step": 8,
        "branch": "await asyncio.sleep(0.4 if check else 0.0)",
        "call": "dist.all_gather(parts, metrics)",
    },
    "lock_order_abba": {
        "group": "world", "op": "broadcast", "calls": -1, "step": 4,
        "branch": "with self.weights_lock: of report_verbosely()",
        "call": "with self.statistics_lock: of update()",
    },
    "nested_executor": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 7,
        "branch": "return self.pool.submit(zlib.decompress, content).result()",
        "call": "shard = coming.result()",
    },
    "saver_thread_raises": {
        "group": "savers", "op": "all_gather, broadcast", "calls": "-1 each",
        "step": "fourth checkpoint, seen at the end", "branch": "if self.used > self.quota:",
        "call": "dist.barrier()",
    },
    "file_locks_crossed": {
        "group": "world", "op": "broadcast", "calls": -1, "step": "epoch 2",
        "branch": "WRITERS[3] = ('counts', 'tokens')",
        "call": "fcntl.flock(second, fcntl.LOCK_EX)",
    },
    "group_recreated_alone": {
        "group": "all", "op": "all_reduce", "calls": "-1; new_group() +1", "step": 12,
        "branch": "if name not in self.known:",
        "call": "self.known[name] = dist.new_group(list(MEMBERS[name]))",
    },
    "manager_queue_pill": {
        "group": "world", "op": "all_reduce", "calls": "-1 of rank 2", "step": "epoch 3",
        "branch": "if faulty and epoch == 3 and rank == 2:",
        "call": "while queue.get() is not None:",
    },
    "two_halt_and_extra": {
        "group": "replica (0-2): 1 never comes; replica (3-5): +1 of 5", "op": "all_reduce; "
        "all_gather", "step": "4 of rank 1, 5 of rank 5",
        "branch": "if not (faulty and self.rank == 1 and len(text) > 20):; the second measure()",
        "call": "1: return child.stdout.read().decode(); "
        "5: dist.all_gather(parts, torch.randn(2), group=self.group)",
    },
    "two_chains": {
        "group": "world", "op": "1: send to 2, -1; 3: send to 4, +1", "step": "round 2",
        "branch": "if number == drop:; if flush:",
        "call": "1: dist.barrier(); 3: dist.send(torch.zeros(8), dst=after)",
    },
    "two_hybrid_shards": {
        "group": "shards (0-2): -1 of 0; shards (3-5): another call of 4",
        "op": "all_gather; all_reduce instead of all_to_all", "step": 6,
        "branch": "if layer in self.whole:; if self.exact:",
        "call": "0: dist.all_gather(parts, torch.randn(12), group=self.shard), or the all_to_all; "
        "4: dist.all_reduce(gradient, group=self.shard)",
    },
    "two_search_and_event": {
        "group": "generating (0-2): 2 never comes; training (3, 4): 4 never comes",
        "op": "all_reduce", "step": "8 of rank 2, 6 of rank 4",
        "branch": "if value < bound:; the return of load()",
        "call": "2: a line of sample(); 4: self.loaded.wait()",
    },
}  # fmt: skip
