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
    Program(
        "ddp_rewrap_plateau", "torch",
        "rank 0 wraps its model again two steps early, by its own loss instead of the mean; its "
        "peers go on with the buckets of the old one",
        (0,), (*ALONE, *ORDER),
    ),
    Program(
        "fsdp2_clip_local", "torch",
        "rank 3 leaves out the norm of one step, its own shard of the gradients being small",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "dtensor_two_caches", "torch",
        "two faults: rank 0 takes a weight from its cache, its group gathers it; rank 4 gathers a "
        "weight once more than its group",
        (0, 4), (*ABSENT, *ALONE), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "mesh_axis_swapped", "torch",
        "rank 2 sums one gradient over its tensor parallel pair instead of its data parallel one",
        # The next sum of rank 3 over that pair goes through with it. All wait in one line.
        (2,), ("comm_swap", *ABSENT, *ALONE), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "async_save_skipped", "torch",
        "rank 2 leaves out a checkpoint, the one before being not written yet; that shows when "
        "its peers wait for their last one",
        # Stacks show three ranks that wait for a thread, and rank 2 in the last barrier.
        (2,), ABSENT, undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "healthy_eval_uneven", "torch",
        "nothing: rank 0 scores each second batch in Python for 14 s, ranks have unequal numbers",
        hangs=False, world=5,
    ),
    Program(
        "callback_inserted", "torch",
        "rank 3 runs a new callback before the older ones, its peers after them",
        (3,), ORDER,
    ),
    Program(
        "rl_learner_gives_up", "torch",
        "rank 0 takes no trajectory of rank 3, the time being up, and broadcasts new weights",
        # Rank 1 waits in the broadcast for rank 3, and rank 0 for rank 1 in the next round.
        (0,), PIPELINE, undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "pipe_1f1b_lost_gradient", "torch",
        "rank 0 leaves out the backward of one microbatch; rank 1 cannot send its last gradient",
        # Six forward and five backward; rank 0 waits in the all_reduce, as ranks 2 and 3 do.
        (0,), PIPELINE, undecided_untraced=(0, 1), unknown_in=(UNTRACED,),
    ),
    Program(
        "worker_unknown_adapter", "torch",
        "rank 2 catches a KeyError before the layers of a batch and waits for the next batch",
        (2,), (*ABSENT, *ORDER),
    ),
    Program(
        "dp_metadata_pair", "torch",
        "rank 1 agrees on sizes once more than rank 0 in one step",
        # One against one, and how often they do is drawn at random.
        (1,), (*ALONE, *ABSENT, *ORDER), undecided=(0, 1), world=2,
    ),
    Program(
        "engine_preempts_forever", "torch",
        "the scheduler of rank 3 preempts and admits the same requests for ever",
        (3,), LATE, busy=(3,), most="likely", unknown_in=(UNTRACED,),
    ),
    Program(
        "halo_regrid_peer", "torch",
        "rank 3 sends its halo to rank 0 instead of rank 4, after a cut with one part too few",
        (3,), PIPELINE, undecided_untraced=_FIVE, unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "farm_double_result", "torch",
        "rank 2 sends two results in one round, and rank 0 takes the second for that of rank 4",
        # Rank 0 takes results of any sender: the next task for rank 4 waits, and so does rank 4.
        (2,), (*PIPELINE, "extra_call"), undecided=(0, 2, 4), undecided_untraced=_FIVE,
        unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "wait_any_chunks", "torch",
        "rank 3 sends one chunk fewer than rank 0 waits for",
        # The number of chunks is another one in each round; either may have miscounted.
        (3,), (*PIPELINE, "extra_call"), undecided=(0, 3), undecided_untraced=_FIVE,
        unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "rebalance_stale_table", "torch",
        "rank 5 sends over a distance of one and expects the same, its peers have gone over to two",
        (5,), PIPELINE, undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "lock_around_metrics", "torch",
        "the thread of rank 1 holds a lock in a sum that its peers post after the step; the main "
        "thread of rank 1 needs the lock for the step",
        (1,), (*HALT, "order_cycle", "extra_call", "op_mismatch", "missing_call"),
    ),
    Program(
        "queue_producer_died", "torch",
        "the thread that fills the queue of rank 2 died of a ValueError, its main thread waits",
        (2,), (*HALT, "missing_call"), world=3,
    ),
    Program(
        "tokenizer_regex", "torch",
        "a regular expression backtracks for ever in a thread of rank 0, which holds the GIL",
        (0,), LATE, busy=(0,), most="likely", unknown_in=(UNTRACED,), world=3,
    ),
    Program(
        "healthy_lock_turns", "torch",
        "nothing: ranks unpack in turn under a file lock, 6 or 12 s each",
        hangs=False,
    ),
    Program(
        "early_stop_ties", "torch",
        "rank 5 takes an equal accuracy for a better one and trains for another epoch; its peers "
        "gather tests",
        (5,), ALONE, world=6,
    ),
    Program(
        "accum_flush_remainder", "torch",
        "rank 1 has one sample more in an epoch, and flushes both buckets once more",
        (1,), ALONE, world=5,
    ),
    Program(
        "pair_leader_drawn", "torch",
        "rank 3 has drawn one leader more than rank 2, so that each waits for the plan of the "
        "other, or each sends one",
        # One against one, and the leader of each step is drawn at random.
        (3,), ("root_mismatch",), undecided=(2, 3), world=5,
    ),
    Program(
        "monitored_or_plain", "torch",
        "rank 1 waits in a plain barrier, its peers in a monitored one",
        (1,), ("op_mismatch", *ABSENT, "extra_call"),
    ),
    Program(
        "group_members_stale", "torch",
        "rank 2 makes a group without rank 3, ranks 1 and 3 make one of three",
        # All three wait in the same line, and rank 0 for them.
        (2,), ("init_stalled", *ABSENT, *ORDER), undecided_untraced=(1, 2, 3),
        unknown_in=(UNTRACED,),
    ),
    Program(
        "eval_pairwise_metric", "torch",
        "rank 0 compares all pairs of 120,000 samples in Python before it broadcasts the metric",
        (0,), LATE, busy=(0,), most="likely", unknown_in=(UNTRACED,), world=3,
    ),
    Program(
        "zero_replicas_two_skips", "torch",
        "two faults: rank 1 leaves out the broadcast of a layer, rank 5 the reduction of another, "
        "each in a replica of its own",
        (1, 5), (*ABSENT, *ORDER, "root_mismatch"), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "moe_chunks_two_groups", "torch",
        "two faults: rank 6 has one chunk fewer than its expert group, rank 1 one more than its",
        (1, 6), (*ABSENT, *ALONE), undecided_untraced=tuple(range(8)), world=8,
    ),
    Program(
        "healthy_elastic_restart", "torch",
        "nothing: rank 2 loads a checkpoint for more than a minute before it meets its peers anew",
        hangs=False,
    ),
    Program(
        "kv_blocks_prefix_hit", "torch",
        "rank 3 expects one block fewer than rank 1 sends",
        # The number of blocks is drawn for each request and part; either may have miscounted.
        (3,), (*PIPELINE, "extra_call"), undecided=(1, 3), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "draft_one_more", "torch",
        "rank 0 runs the draft model for a fifth token, rank 1 for four",
        # One against one, but it has been four for twenty steps.
        (0,), (*ALONE, *ABSENT),
    ),
    Program(
        "healthy_control_idle", "torch",
        "nothing: rank 0 waits for the next message of a client, its peers for a broadcast",
        hangs=False, world=5,
    ),
    Program(
        "tag_of_request", "torch",
        "rank 1 sends under another tag than rank 2 expects",
        # Tags are a hash of names; either may be the wrong one.
        (1,), ("p2p_mismatch",), undecided=(1, 2), unknown_in=(UNTRACED,), world=3,
    ),
    Program(
        "healthy_ring_straggler", "torch",
        "nothing: in each round another rank waits for its child, which computes for 16 s",
        hangs=False, world=3,
    ),
    Program(
        "healthy_server_any_source", "torch",
        "nothing: clients ask a server at unequal paces, each 3 to 24 s",
        hangs=False, world=5,
    ),
    Program(
        "tree_leaf_busy", "torch",
        "rank 4, a leaf of the tree, fits for ever; rank 1 waits for it, and all wait for rank 1",
        (4,), LATE, busy=(4,), most="likely", unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "licence_and_signal", "torch",
        "two faults: rank 1 waits for its licence daemon, rank 4 takes a lock in a signal handler "
        "that it holds already",
        (1, 4), HALT, world=5,
    ),
    Program(
        "child_pipe_full", "torch",
        "rank 3 waits for the end of its child, which waits for somebody to read its full pipe",
        (3,), HALT,
    ),
    Program(
        "store_other_name", "torch",
        "rank 2 publishes its address under another name; all wait for it, rank 2 as well",
        # All wait in the same line for the same keys, and no record shows who was to set which.
        (2,), ("init_stalled", "stalled", "not_joined", "missing_call"), undecided=_ALL,
        unknown_in=(ATTACH, WATCH, DIAGNOSE, UNTRACED),
    ),
    Program(
        "exit_hook_upload", "torch",
        "rank 1 waits in an exit hook for a file that its thread never counts as done; its peers "
        "are in the barrier of the next hook",
        (1,), HALT, world=3,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers3/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "ddp_rewrap_plateau": {
        "group": "world", "op": "all_gather, broadcast of the constructor", "calls": "early",
        "step": 8, "branch": "if plateau.flat(local if faulty and rank == 0 else mean):",
        "call": "return DistributedDataParallel(model)",
    },
    "fsdp2_clip_local": {
        "group": "world", "op": "all_reduce of the norm", "calls": -1, "step": 6,
        "branch": "if norm > LIMIT:",
        "call": "model(torch.randn(4, 16)).square().mean().backward()",
    },
    "dtensor_two_caches": {
        "group": "tp (0-2): -1 of 0; tp (3-5): +1 of 4", "op": "all_gather",
        "step": "7, second layer",
        "branch": "if self.cache is None or not stale: of 0; if here and rank == 4: of 4",
        "call": "0: dist.all_reduce(torch.randn(12), group=dp); 4: self.cache = "
        "self.weight.full_tensor()",
    },
    "mesh_axis_swapped": {
        "group": "dp (0, 2): -1; tp (2, 3): +1", "op": "all_reduce", "step": 41,
        "branch": 'return self.tensor if name.startswith("norm") else self.data',
        "call": "dist.all_reduce(torch.randn(24), group=topology.reduction(name))",
    },
    "async_save_skipped": {
        "group": "the second of ranks 0-3", "op": "gather_object, barrier", "calls": -3,
        "step": "15, or a later checkpoint", "branch": "if may_skip and not self.pending.done():",
        "call": "dist.barrier() of main()",
    },
    "callback_inserted": {
        "group": "world", "op": "broadcast before all_reduce", "calls": 0, "step": "epoch 3",
        "branch": "self.add(Averaging(), first=older)",
        "call": "dist.broadcast(trainer.weights, src=0)",
    },
    "rl_learner_gives_up": {
        "group": "world", "op": "recv from 3", "calls": -1, "step": "iteration 7",
        "branch": "if len(taken) >= minimum and time.monotonic() - begun > limit:",
        "call": "dist.recv(trajectory, src=worker) of the next iteration, or dist.broadcast",
    },
    "pipe_1f1b_lost_gradient": {
        "group": "world", "op": "recv from 1", "calls": -1, "step": 5,
        "branch": "if micro == lost:", "call": "dist.all_reduce(torch.ones(4))",
    },
    "worker_unknown_adapter": {
        "group": "world", "op": "all_reduce", "calls": -6, "step": 60,
        "branch": 'scale = self.adapters[batch["adapter"]]',
        "call": "dist.broadcast_object_list(message, src=0)",
    },
    "dp_metadata_pair": {
        "group": "metadata (0, 1)", "op": "all_reduce", "calls": +1, "step": 23,
        "branch": "for _ in range(decodes):",
        "call": "dist.all_reduce(sizes, group=self.metadata)",
    },
    "engine_preempts_forever": {
        "group": "world", "op": "all_reduce MAX", "calls": "late", "step": 18,
        "branch": "while self.waiting:", "call": "a line of schedule()",
    },
    "halo_regrid_peer": {
        "group": "world", "op": "send to 0 instead of 4", "calls": 0, "step": 12,
        "branch": "slab.cut(world - 1 if short else world)", "call": "sent.wait()",
    },
    "farm_double_result": {
        "group": "world", "op": "send to 0", "calls": +1, "step": "round 5",
        "branch": "for answer in answers:", "call": "dist.send(torch.tensor([answer]), dst=0)",
    },
    "wait_any_chunks": {
        "group": "world", "op": "send to 0", "calls": -1, "step": "round 9",
        "branch": "for _ in range(count):", "call": "dist.broadcast(total, src=0)",
    },
    "rebalance_stale_table": {
        "group": "world", "op": "send to 0 and recv from 4 instead of 1 and 3", "calls": 0,
        "step": 13, "branch": "if step == 12 and not (faulty and rank == 5):",
        "call": "work.wait()",
    },
    "lock_around_metrics": {
        "group": "metrics (0-3)", "op": "all_reduce before that of world", "calls": "early",
        "step": 13, "branch": "if early:", "call": "with lock: of main(), with self.lock: of 1",
    },
    "queue_producer_died": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 9,
        "branch": 'rows = int(shard.split("-")[1])', "call": "return self.batches.get()",
    },
    "tokenizer_regex": {
        "group": "world", "op": "all_reduce", "calls": "late", "step": "0 or 1",
        "branch": "if WORDS.match(text) is None:", "call": "if WORDS.match(text) is None:",
    },
    "early_stop_ties": {
        "group": "world", "op": "all_reduce", "calls": "+5 or more", "step": "epoch 7",
        "branch": "better = accuracy >= self.best if self.ties_count else accuracy > self.best",
        "call": "dist.all_reduce(gradient)",
    },
    "accum_flush_remainder": {
        "group": "world", "op": "all_reduce x2", "calls": +2, "step": "epoch 6",
        "branch": "if self.pending:", "call": "dist.all_reduce(bucket)",
    },
    "pair_leader_drawn": {
        "group": "pair (2, 3)", "op": "broadcast of an object", "calls": 0,
        "step": "8, or one soon after it", "branch": "return self.random.choice(self.members)",
        "call": "dist.broadcast_object_list(plan, src=leader, group=self.group)",
    },
    "monitored_or_plain": {
        "group": "world", "op": "barrier instead of monitored_barrier", "calls": 0,
        "step": "stage 3", "branch": 'if os.environ.get("TRAIN_DEBUG", "1") == "1":',
        "call": "dist.barrier()",
    },
    "group_members_stale": {
        "group": "a new one of 1, 2 instead of 1, 2, 3", "op": "new_group", "calls": 0,
        "step": "phase 1", "branch": "self.decoders = [1, 2] if late else [1, 2, 3]",
        "call": "return dist.new_group(self.decoders, use_local_synchronization=True)",
    },
    "eval_pairwise_metric": {
        "group": "world", "op": "broadcast", "calls": "late", "step": 16,
        "branch": "for second in range(len(points)):", "call": "a line of pairwise()",
    },
    "zero_replicas_two_skips": {
        "group": "shards (0-2): broadcast -1 of 1; shards (3-5): reduce -1 of 5", "step": 7,
        "branch": "if layer in dropped: of 1; if layer in frozen: of 5",
        "call": "1: dist.broadcast or dist.reduce of a later layer; "
        "5: dist.all_reduce(torch.randn(48), group=pairs[rank % 3])",
    },
    "moe_chunks_two_groups": {
        "group": "experts (4-7): -4 of 6; experts (0-3): +4 of 1", "op": "all_to_all", "step": 10,
        "branch": "chunks = -(-tokens // CHUNK)",
        "call": "6: dist.all_reduce(torch.tensor([tokens]), op=dist.ReduceOp.MAX); "
        "1: dist.all_to_all_single(arrived, rows, group=self.group)",
    },
    "kv_blocks_prefix_hit": {
        "group": "world", "op": "recv from 1", "calls": -1, "step": "request 11",
        "branch": "for _ in range(request.blocks(self.part) - self.cached(request)):",
        "call": "dist.all_reduce(torch.ones(1))",
    },
    "draft_one_more": {
        "group": "draft (0, 1)", "op": "all_reduce x2", "calls": +2, "step": 27,
        "branch": "for number in range(count):",
        "call": "dist.all_reduce(hidden, group=self.group)",
    },
    "tag_of_request": {
        "group": "world", "op": "send to 2, another tag", "calls": 0, "step": "request 9",
        "branch": 'tag = tag_of(f"{name}-retry" if retried else name)',
        "call": "dist.send(torch.randn(32), dst=2, tag=tag)",
    },
    "tree_leaf_busy": {
        "group": "world", "op": "send to 1", "calls": "late", "step": 8,
        "branch": "while change > tolerance:", "call": "a line of fit()",
    },
    "licence_and_signal": {
        "group": "world", "op": "all_reduce", "calls": "-1 each", "step": 7,
        "branch": "self.connection.recv(5) of 1; with self.lock: of rotate() of 4",
        "call": "self.connection.recv(5) of 1; with self.lock: of rotate() of 4",
    },
    "child_pipe_full": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 8,
        "branch": "status = tool.wait()", "call": "status = tool.wait()",
    },
    "store_other_name": {
        "group": "store", "op": "set directory/1/worker-2", "calls": -1, "step": "phase 1",
        "branch": 'name = f"worker-0{rank}"', "call": "self.store.wait(keys)",
    },
    "exit_hook_upload": {
        "group": "world", "op": "barrier", "calls": -1, "step": "exit",
        "branch": 'if name.endswith(".tmp"):', "call": "self.files.join()",
    },
}  # fmt: skip
"""For each faulty program that hangs: where the diverging ranks left the common sequence.

``group`` is the communicator, ``calls`` how many more (or fewer) they made there, ``branch`` the
line that decided, ``call`` the line at which they were instead.
"""
