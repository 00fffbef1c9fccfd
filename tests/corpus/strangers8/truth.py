"""What is wrong in each program of this folder: written before any tool was run on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.corpus.runner.truth import (
    ABSENT,
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

_TABLE = [
    # Point to point, servers, actors
    Program(
        "pipe_credit_window", "torch",
        "rank 2 gives back no credit for one microbatch, and rank 1 waits for its last one",
        (2,), PIPELINE, undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "ps_shard_owner_table", "torch",
        "rank 4 pushes both shards to server 0 after a refresh of its table; server 1 waits for it",
        (4,), (*PIPELINE, "extra_call", "order_cycle"), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "replay_priorities_nan", "torch",
        "rank 0, the learner, sends no priorities in one iteration; the buffer, rank 1, waits",
        (0,), PIPELINE, undecided_untraced=_FIVE, unknown_in=(UNTRACED,), world=5,
    ),
    Program(
        "halo_ghost_width", "torch",
        "rank 3 posts no irecv for one edge, and rank 0 waits for its isend",
        (3,), PIPELINE, undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "engine_abort_envelope", "torch",
        "rank 3 takes itself for idle and leaves out a step of its workers' group",
        # Ranks 0 and 3 both wait at a socket; that of rank 0 is for rank 1, which no stack shows.
        (3,), (*ABSENT, *HALT), undecided_untraced=_FIVE, world=5,
    ),
    # Stores, elastic jobs, timeouts
    Program(
        "elastic_generation_twice", "torch",
        "rank 1 counts one restart twice, and makes the next group under another prefix",
        # All wait in one line of init_process_group(), each for keys that no record holds.
        (1,), (*HALT, "missing_call", "init_stalled", "dead_rank"), undecided=_ALL,
        unknown_in=(DIAGNOSE, WATCH, UNTRACED),
    ),
    Program(
        "lease_holder_killed", "torch",
        "rank 1 is killed before it publishes a plan; its peers wait for the key in the store",
        # Untraced, nothing is left of rank 1.
        (1,), ("dead_rank", *ABSENT), undecided_untraced=_ALL, unknown_in=(UNTRACED,),
    ),
    Program(
        "plan_timeout_default", "torch",
        "rank 5 gives up waiting for a plan, takes its default, and has one all_reduce fewer",
        (5,), (*ABSENT, *ORDER), world=6,
    ),
    # Threads, locks, files, children
    Program(
        "heartbeat_not_restarted", "torch",
        "rank 0 does not start its heartbeat thread again in the third phase",
        # Stacks show three ranks that wait for their threads, and rank 0 in the barrier after.
        (0,), (*ABSENT, *ORDER), undecided_untraced=_ALL,
    ),
    Program(
        "sidecar_header_chars", "torch",
        "rank 0 waits for more bytes than its tokenizer's process sends, which counts characters",
        (0,), (*HALT, "missing_call"),
    ),
    Program(
        "helper_left_paused", "torch",
        "rank 4 waits for a line of its helper, which it has stopped and not continued",
        (4,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "connection_pool_leak", "torch",
        "rank 3 waits for a connection of its pool, all of which it has lost to missing objects",
        (3,), (*HALT, "missing_call"),
    ),
    Program(
        "thread_barrier_broken", "torch",
        "the main thread of rank 1 waits in a barrier of threads, one of which has ended",
        (1,), (*HALT, "missing_call"), world=3,
    ),
    Program(
        "sqlite_open_transaction", "torch",
        "rank 2 leaves a transaction open; its peers wait for the database, and rank 2 is in the "
        "barrier after it",
        # What shows is three ranks that do not come; whose the lock is, no record of a call holds.
        (2,), (*HALT, *ABSENT), undecided=_ALL, also=((0, 1, 3),), busy=(0, 1, 3),
        unknown_in=(ATTACH, DIAGNOSE, WATCH, UNTRACED),
    ),
    # Two faults
    Program(
        "two_cached_prompt_and_confirm", "torch",
        "two faults: rank 0 sends no prompt to rank 1, which its ring of three waits for; rank 5 "
        "waits for a tool that asks back",
        (0, 5), (*PIPELINE, *HALT), undecided_untraced=_SIX, unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "two_datagram_and_retry", "torch",
        "two faults: rank 1 waits for the answer to a datagram that was dropped, rank 4 leaves a "
        "loop of attempts by its own success, one attempt before its group",
        (1, 4), (*HALT, *ABSENT, *ORDER), undecided_untraced=_SIX, world=6,
    ),
    # Healthy
    Program(
        "healthy_actor_threads", "torch",
        "nothing: threads of rank 0 receive from actors, each of which takes 3 to 21 s",
        hangs=False,
    ),
    Program(
        "healthy_leavers", "torch",
        "nothing: ranks 4, 3 and 2 end one after the other when their tasks are done, the others "
        "go on for a minute",
        hangs=False, world=5,
    ),
    Program(
        "healthy_store_retries", "torch",
        "nothing: ranks wait for a key of the store for 2 s at a time; it comes after 11 to 19 s",
        hangs=False,
    ),
    Program(
        "healthy_model_child", "torch",
        "nothing: rank 1, the middle of a pipeline, polls a child that takes 9 to 20 s",
        hangs=False, world=3,
    ),
]  # fmt: skip

PROGRAMS = {program.name: replace(program, folder="strangers8/programs") for program in _TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "pipe_credit_window": {
        "group": "world", "op": "send to 1", "calls": -1, "step": "round 5",
        "branch": "if not self.is_padding(rows):", "call": "dist.all_reduce(losses)",
    },
    "ps_shard_owner_table": {
        "group": "world", "op": "send to 0 instead of 1", "calls": 0, "step": 7,
        "branch": "self.owners = refreshed",
        "call": "dist.send(gradient, dst=self.owners[shard])",
    },
    "replay_priorities_nan": {
        "group": "world", "op": "send to 1", "calls": -1, "step": "iteration 8",
        "branch": "if torch.isfinite(errors).all():",
        "call": "dist.broadcast(weights, src=LEARNER), or the recv of the learner's next batch",
    },
    "halo_ghost_width": {
        "group": "world", "op": "recv from 0", "calls": -1, "step": "sweep 9",
        "branch": "if width:", "call": "dist.all_reduce(residual, op=dist.ReduceOp.MAX)",
    },
    "engine_abort_envelope": {
        "group": "workers (1-4)", "op": "all_reduce", "calls": -3, "step": 11,
        "branch": "if not self.running:", "call": "message = self.scheduler.recv()",
    },
    "elastic_generation_twice": {
        "group": "world", "op": "init_process_group", "calls": 0, "step": "generation 2",
        "branch": "self.generation += 1 of on_lost()",
        "call": 'dist.init_process_group("gloo", store=store, rank=self.rank, '
        "world_size=self.world)",
    },
    "lease_holder_killed": {
        "group": "world", "op": "all_reduce", "calls": "process gone", "step": "round 9",
        "branch": "os.kill(os.getpid(), signal.SIGKILL)  # out of memory", "call": "",
    },
    "plan_timeout_default": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 6,
        "branch": "except dist.DistStoreError:",
        "call": "dist.all_gather(norms, torch.rand(1))",
    },
    "heartbeat_not_restarted": {
        "group": "health (0-3)", "op": "all_reduce", "calls": -6, "step": "phase 2",
        "branch": "if self.thread is None:", "call": "dist.barrier()",
    },
    "sidecar_header_chars": {
        "group": "world", "op": "broadcast", "calls": -1, "step": "text 5",
        "branch": 'struct.pack("!I", len(text))',
        "call": "part = self.ours.recv(size - len(data))",
    },
    "helper_left_paused": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 8,
        "branch": "if loss > self.best:", "call": "line = self.process.stdout.readline()",
    },
    "connection_pool_leak": {
        "group": "world", "op": "all_gather of an object", "calls": -1, "step": 8,
        "branch": "if answer.status == 404:", "call": "connection = self.free.get()",
    },
    "thread_barrier_broken": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 4,
        "branch": "except ValueError as error:", "call": "self.filled.wait()",
    },
    "sqlite_open_transaction": {
        "group": "world", "op": "barrier", "calls": "all but 2 never come", "step": 5,
        "branch": "except ValueError:", "call": "2: dist.barrier(); "
        'peers: self.connection.execute("BEGIN IMMEDIATE")',
    },
    "two_cached_prompt_and_confirm": {
        "group": "world", "op": "0: send to 1; 5: send to 3", "calls": -1, "step": "5; 7",
        "branch": "if prompt not in self.seen:; if os.path.exists(target):",
        "call": "0: dist.recv(answer, src=self.before); "
        "5: return self.process.stdout.readline().strip()",
    },
    "two_datagram_and_retry": {
        "group": "first (0-2): 1 never comes; second (3-5): -1 of 4", "op": "all_reduce",
        "step": "after 5 of rank 1, 8 of rank 4",
        "branch": "if len(data) <= LIMIT:; if done if alone else agreed.item():",
        "call": "1: self.socket.recv(16); "
        "4: dist.all_gather(parts, torch.randn(6), group=self.group)",
    },
}  # fmt: skip
"""A further set of programs whose truth was written by somebody who does not know the verdicts."""
