"""What is wrong in each program of this folder: written before any tool was run on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.corpus.runner.truth import (
    ABSENT,
    ALONE,
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
_EIGHT = (*_SIX, 6, 7)

_TABLE = [
    # Training, loaders, evaluation
    Program(
        "eval_best_local", "torch",
        "rank 2 has lost its best loss, takes a model for better that is not, and gathers metrics",
        (2,), (*ALONE, *ORDER), launch="torchrun",
    ),
    Program(
        "fsdp2_accum_last", "torch",
        "rank 3 takes no batch of a step for the last one, and so reduces no gradients in it",
        (3,), (*ABSENT, *ORDER),
    ),
    Program(
        "iterable_worker_shards", "torch",
        "a worker of rank 2 drops one batch more, and rank 2 ends the epoch a step early",
        (2,), (*ABSENT, *ORDER),
    ),
    Program(
        "loader_asks_parent", "torch",
        "the worker of rank 0's loader waits for an answer of its parent, which waits for a batch",
        (0,), (*HALT, "missing_call"), world=3,
    ),
    Program(
        "lbfgs_closure_count", "torch",
        "rank 3 searches by its own loss, and so evaluates its closure another number of times",
        (3,), (*ABSENT, *ALONE, *ORDER),
    ),
    Program(
        "epoch_budget_exit", "torch",
        "rank 1 ends in step 10, its time being up; its peers get a closed connection",
        (1,), (*ABSENT, "dead_rank"), ends=True,
    ),
    # Point to point, servers and clients
    Program(
        "pp_early_exit_token", "torch",
        "rank 1 leaves the later stages out from token 17 on, and does not send to rank 2",
        (1,), PIPELINE, undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "stale_irecv_swallow", "torch",
        "rank 2 asks ahead for one batch too many; that takes the statistics of rank 1, for which "
        "it waits then",
        # As many asked for as sent and one more: its producer may have sent one too few, though
        # both pairs had ten in all epochs before.
        (2,), (*PIPELINE, "extra_call", "stalled"), undecided=(1, 2), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "federated_client_zero", "torch",
        "rank 4 sends no update in one round; rank 2 waits for one of any rank",
        (4,), PIPELINE, undecided_untraced=_FIVE, unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "rl_staleness_limit", "torch",
        "rank 3 waits for weights that rank 0 makes of its next rollout",
        # All generators wait for weights; rank 0 waits for rank 3, which stacks do not show.
        (3,), (*PIPELINE, *HALT), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "server_port_stale", "torch",
        "rank 1 asks an old port for ever for the server",
        # It polls every half second: two samples alone do not show that it never ends.
        (1,), (*HALT, "missing_call"), busy=(1,), unknown_in=(UNTRACED,), launch="torchrun",
    ),
    Program(
        "metrics_no_shutdown", "torch",
        "rank 4 waits for an answer of a service that waits for the end of its message",
        (4,), (*HALT, "missing_call"), world=6,
    ),
    # Objects, checkpoints, groups, stores
    Program(
        "object_list_leader", "torch",
        "rank 3 takes itself for the leader, all others take rank 1",
        (3,), ("root_mismatch",), undecided_untraced=_FIVE, world=5,
    ),
    Program(
        "dcp_local_fallback", "torch",
        "rank 2 saves one checkpoint by itself, without its peers",
        (2,), (*ABSENT, *ORDER),
    ),
    Program(
        "mesh_flatten_order", "torch",
        "rank 5 flattens two pairs of dimensions in the opposite order",
        (5,), ("init_stalled", "order_cycle", *ABSENT, *ORDER), undecided_untraced=_EIGHT,
        unknown_in=(UNTRACED,), world=8,
    ),
    Program(
        "init_stale_hosts", "torch",
        "rank 2 waits in init_process_group for a fifth rank that there is not",
        (2,), (*HALT, "init_stalled", "dead_rank"), undecided=_ALL,
        # All but the first are in it; that one of them waits for a fifth, no stack shows.
        undecided_in=(DIAGNOSE, WATCH, UNTRACED), unknown_in=(DIAGNOSE, WATCH, UNTRACED),
    ),
    Program(
        "store_arrival_skipped", "torch",
        "rank 1 does not arrive at a commit, for which its peers wait in the store",
        # What shows is three ranks in the store and rank 1 where all ought to be next.
        (1,), (*ABSENT, *HALT), undecided=_ALL, also=((0, 2, 3),),
    ),
    Program(
        "finalizer_collective", "torch",
        "rank 0 still refers to a buffer, whose finalizer has a barrier in it",
        (0,), (*ABSENT, *ORDER), world=5,
    ),
    # Locks, files, threads, children, signals
    Program(
        "flock_inherited", "torch",
        "rank 0 waits for a file lock that its own helper has inherited",
        (0,), (*HALT, "missing_call"),
    ),
    Program(
        "signal_handler_lock", "torch",
        "a signal handler of rank 1 waits for a lock that the interrupted code holds",
        (1,), (*HALT, "missing_call"),
    ),
    Program(
        "mp_queue_join_first", "torch",
        "rank 4 waits for the end of a child that waits for its queue to be read",
        (4,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "queue_join_task_done", "torch",
        "rank 3 waits for a queue whose thread has not reported one record as done",
        (3,), (*HALT, "missing_call"), world=5,
    ),
    # Two faults
    Program(
        "two_pipe_and_bucket", "torch",
        "two faults: rank 2 reads a pipe whose writing end it has open itself, rank 4 leaves out "
        "the last bucket of a step",
        (2, 4), (*HALT, *ABSENT, *ORDER), undecided_untraced=_SIX, world=6,
    ),
    Program(
        "two_suppress_and_pool", "torch",
        "two faults: rank 0 leaves out a gather because of a missing file, rank 5 waits for a "
        "task of a worker that was killed",
        (0, 5), (*HALT, *ABSENT, *ORDER), undecided_untraced=_SIX, world=6,
    ),
    # Healthy
    Program(
        "healthy_uneven_numpy", "torch",
        "nothing: one rank in turn computes by numpy for 12 s, the others for 1.5 s",
        hangs=False,
    ),
    Program(
        "healthy_file_feeder", "torch",
        "nothing: rank 2 polls for files that a child writes every 13 to 21 s",
        hangs=False,
    ),
    Program(
        "healthy_compile_first", "torch",
        "nothing: the first step of each phase compiles for 19 s on one rank in turn",
        hangs=False, world=3,
    ),
    Program(
        "healthy_slow_reader", "torch",
        "nothing: the thread that reads ahead for rank 1 stalls for 13 to 22 s at times",
        hangs=False, world=3,
    ),
    Program(
        "healthy_embedding_server", "torch",
        "nothing: rank 3 serves four clients that think for 1 to 22 s between requests",
        hangs=False, world=5,
    ),
    Program(
        "healthy_checkpoint_child", "torch",
        "nothing: a child of rank 0 compresses checkpoints for 11 to 23 s, its peers wait",
        hangs=False,
    ),
    Program(
        "healthy_socket_scorer", "torch",
        "nothing: rank 1 waits for a server that answers after 12 to 24 s",
        hangs=False, world=5,
    ),
    Program(
        "healthy_eval_torchrun", "torch",
        "nothing: evaluations of 10 to 25 s on all ranks, none of which calls anything",
        hangs=False, launch="torchrun",
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers6/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "eval_best_local": {
        "group": "world", "op": "all_gather x2 (of an object)", "calls": "+2", "step": "epoch 4",
        "branch": "if not self.best.beats(loss):",
        "call": 'dist.all_gather_object(metrics, {"rank": self.rank, "loss": loss})',
    },
    "fsdp2_accum_last": {
        "group": "world", "op": "reduce_scatter", "calls": -4, "step": 5,
        "branch": "self.model.set_requires_gradient_sync(index + 1 == len(loader))",
        "call": "dist.all_gather(losses, loss.reshape(1))",
    },
    "iterable_worker_shards": {
        "group": "world", "op": "all_reduce x2", "calls": -2, "step": "epoch 1, the last batch",
        "branch": "for batch in loader:",
        "call": 'dist.all_gather_object(totals, {"epoch": epoch, "loss": total})',
    },
    "loader_asks_parent": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "batch 9",
        "branch": "if word not in self.numbers:", "call": "for batch in loader:",
    },
    "lbfgs_closure_count": {
        "group": "world", "op": "all_reduce", "calls": "another number", "step": "round 3 or 4",
        "branch": "return loss if self.local_loss else average / dist.get_world_size()",
        "call": "dist.all_gather(norms, torch.rand(1)), or a line of closure()",
    },
    "epoch_budget_exit": {
        "group": "world", "op": "all_reduce", "calls": "-1: it has ended", "step": "after 10",
        "branch": "if budget.is_spent():", "call": "none",
    },
    "pp_early_exit_token": {
        "group": "world", "op": "send to 2", "calls": -1, "step": "token 17",
        "branch": "if self.rank < self.last and not self.is_sure(hidden):",
        "call": "dist.broadcast(token, src=self.last)",
    },
    "stale_irecv_swallow": {
        "group": "world", "op": "recv from 1", "calls": +1, "step": "epoch 4",
        "branch": "if self.left:", "call": "dist.recv(statistics, src=producer)",
    },
    "federated_client_zero": {
        "group": "world", "op": "send to 2", "calls": -1, "step": "round 9",
        "branch": "if update.abs().max() == 0:", "call": "dist.broadcast(weights, src=SERVER)",
    },
    "rl_staleness_limit": {
        "group": "world", "op": "send to 0", "calls": -1, "step": "iteration 7",
        "branch": "needed = iteration + 1 - self.ahead",
        "call": "self.changed.wait_for(lambda: self.version >= needed)",
    },
    "server_port_stale": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "iteration 5",
        "branch": "if self.reads_again:", "call": "time.sleep(0.5), or create_connection()",
    },
    "metrics_no_shutdown": {
        "group": "world", "op": "broadcast", "calls": -1, "step": 8,
        "branch": "if len(content) > CHUNK:", "call": 'if service.recv(2) != b"ok":',
    },
    "object_list_leader": {
        "group": "world", "op": "broadcast from 3 instead of 1", "calls": 0, "step": "epoch 6",
        "branch": "free[rank] = disk.free",
        "call": "dist.broadcast_object_list(plan, src=leader)",
    },
    "dcp_local_fallback": {
        "group": "world", "op": "the calls of dcp.save()", "calls": "all of one save", "step": 8,
        "branch": "if self.is_writable(step):", "call": "dist.all_reduce(parameter.grad)",
    },
    "mesh_flatten_order": {
        "group": "cp_tp before dp_cp", "op": "new_group", "calls": 0, "step": "setup",
        "branch": "if self.context_first:",
        "call": 'weights = self.mesh["cp", "tp"]._flatten("cp_tp")  (the first of two)',
    },
    "init_stale_hosts": {
        "group": "world", "op": "all_reduce", "calls": "it never comes", "step": "start",
        "branch": "world = len(hosts.read_text().splitlines())",
        "call": 'dist.init_process_group("gloo", rank=rank, world_size=world)',
    },
    "store_arrival_skipped": {
        "group": "world", "op": "none: add() of the store", "calls": -1, "step": 15,
        "branch": "if digest == self.digest:", "call": "dist.all_reduce(gradient)",
    },
    "finalizer_collective": {
        "group": "world", "op": "barrier", "calls": -1, "step": 10,
        "branch": "self.slow_steps.append((step, self.buffer))",
        "call": "dist.all_reduce(torch.randn(14))",
    },
    "flock_inherited": {
        "group": "world", "op": "broadcast", "calls": -1, "step": 5,
        "branch": "if self.helper is None:", "call": "fcntl.flock(file, fcntl.LOCK_EX)",
    },
    "signal_handler_lock": {
        "group": "world", "op": "broadcast", "calls": -1, "step": 9,
        "branch": "while len(self.lines) > 5:", "call": "with self.lock: of flush()",
    },
    "mp_queue_join_first": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "round 5",
        "branch": "results.put(...) of the child", "call": "child.join()",
    },
    "queue_join_task_done": {
        "group": "world", "op": "broadcast", "calls": -1, "step": "epoch 4",
        "branch": "except TypeError:", "call": "self.records.join()",
    },
    "two_pipe_and_bucket": {
        "group": "first (0-2): 2 never comes; second (3-5): -1 of 4", "op": "all_reduce",
        "step": "7 of rank 2, 5 of rank 4",
        "branch": "if close:; if overflows and bucket == 3:",
        "call": "2: while part := os.read(reading, 4096):; "
        "4: dist.all_gather(norms, torch.rand(1), group=self.group)",
    },
    "two_suppress_and_pool": {
        "group": "first (0-2): -2 of 0; second (3-5): 5 never comes",
        "op": "all_gather x2; all_reduce", "step": "4 of rank 0, 6 of rank 5",
        "branch": "with contextlib.suppress(FileNotFoundError):; if len(document) > 1000:",
        "call": "0: dist.all_reduce(torch.randn(12), group=self.group); "
        "5: sizes = self.pool.map(pack, documents)",
    },
}  # fmt: skip
