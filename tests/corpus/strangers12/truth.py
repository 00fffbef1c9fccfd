"""What is wrong in each program of this folder: written before any tool was run on them.

Each hang is a chain of waits of different kinds. The rank at fault is the one at its end, which is
two to four steps away from what most ranks are seen in.
"""

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

__all__ = ["PROGRAMS", "STORIES", "TABLE"]

_ALL = (0, 1, 2, 3)
_FIVE = (*_ALL, 4)
_ANY_WAY = (ATTACH, WATCH, DIAGNOSE, UNTRACED)
_RECORDS = (WATCH, DIAGNOSE)

_ROWS = [
    # A file, a child, a service outside of torch.distributed at the end of the chain
    Program(
        "flock_behind_uploader", "torch",
        "rank 3 holds the lock of the archive and waits for a child that waits for a line; rank 2 "
        "waits for the lock, rank 1 for what rank 2 sends, rank 0 in the all_reduce",
        # Records show no locks: ranks 2 and 3 are both in no call.
        (3,), HALT, undecided=(2, 3), undecided_in=_RECORDS,
    ),
    Program(
        "rollout_env_unflushed", "torch",
        "rank 2 waits for an answer of its environment, to which its command is not flushed; rank "
        "3 waits for it in an all_reduce, rank 1 for a message of rank 3 on a socket, rank 0 for "
        "rank 1 in an all_reduce of other ranks",
        # Records show no sockets: ranks 1 and 2 are both in no call, each with one that waits.
        (2,), HALT, undecided=(1, 2), undecided_in=_RECORDS,
    ),
    Program(
        "loader_fifo_last_stage", "torch",
        "the data loader's worker of rank 2 opens a named pipe that nobody writes to; rank 1 waits "
        "for the gradient of rank 2, rank 0 for that of rank 1",
        (2,), (*HALT, *PIPELINE), world=3,
    ),
    Program(
        "simulator_not_resumed", "torch",
        "rank 2 waits for an answer of its simulator, which it has stopped; rank 3 waits for a key "
        "of rank 2, a thread of rank 1 for rank 3, its main thread for that thread, rank 0 for "
        "rank 1, and rank 4 polls for a file of rank 0",
        # A key has no owner: by records, rank 4 may have to set it.
        (2,), HALT, undecided=(2, 4), unknown_in=(UNTRACED,), busy=(4,), world=5,
    ),
    Program(
        "publisher_killed", "torch",
        "rank 3 was killed; rank 2 waits for a key that rank 3 sets, ranks 0 and 1 for a broadcast "
        "of rank 2",
        # Without records nothing shows that there was a rank 3, but the world size.
        (3,), ("dead_rank", *ABSENT), undecided_untraced=(2, 3), unknown_in=(UNTRACED,),
    ),
    Program(
        "tokenizer_busy_chain", "torch",
        "nothing: rank 2 computes for minutes before it sends to rank 1, for which ranks 0 and 3 "
        "wait in an all_reduce",
        (2,), LATE, unknown_in=_ANY_WAY, ok_in=_ANY_WAY, most="likely", busy=(2,),
    ),
    # Threads
    Program(
        "prefetch_shard_filtered", "torch",
        "rank 2 leaves a shard out, so that its thread ends one all_gather early; all main threads "
        "wait for their own threads' queues",
        (2,), ABSENT,
    ),
    Program(
        "exit_manifest_thread", "torch",
        "rank 3 waits for its thread, to which it has not given the end; that of rank 1 waits for "
        "what the thread sends, and its interpreter for the thread; ranks 0 and 2 have ended",
        (3,), (*HALT, *PIPELINE),
    ),
    Program(
        "metric_thread_raised", "torch",
        "the thread of rank 3 has ended by an exception, and its main thread waits for it; a task "
        "of rank 2 waits for its message, ranks 0 and 1 in a monitored barrier",
        # Stacks show no peers: whom rank 2 receives from, they cannot say.
        (3,), (*HALT, *PIPELINE, "dead_rank"), undecided_untraced=(2, 3),
    ),
    Program(
        "plan_nested_future", "torch",
        "the only thread of rank 1's pool waits for tasks of the same pool; rank 3 waits for a "
        "key of rank 1, ranks 0 and 2 in a barrier",
        (1,), (*HALT, "init_stalled"),
    ),
    Program(
        "async_save_dropped", "torch",
        "rank 2 drops a save, so that the threads of its peers wait in an all_gather and hold "
        "their locks; their main threads wait for these, and rank 2 in the next all_reduce",
        # Stacks show no groups and no counts; three of four are alike.
        (2,), (*ABSENT, *ORDER), undecided_untraced=_ALL,
    ),
    Program(
        "logger_lock_order", "torch",
        "the logger of rank 2 takes the lock before the main thread and waits in its all_reduce; "
        "on ranks 0 and 1 the main threads hold it in another all_reduce, and the loggers wait",
        # No order of the two is right by itself: rank 2 departs from its peers.
        (2,), (*ABSENT, *ORDER), undecided=(0, 1, 2), world=3,
    ),
    Program(
        "blocks_ready_deferred", "torch",
        "rank 2 leaves it to its next step to say that blocks are written; its thread waits for "
        "that, a thread of rank 0 for the blocks, rank 1 for rank 0, and rank 2 for rank 1",
        # All four wait for one another in a cycle; what is late in it, no call shows.
        (2,), (*PIPELINE, *HALT, "order_cycle"), undecided=_ALL,
    ),
    # Calls that are left out behind other waits
    Program(
        "score_key_unchanged", "torch",
        "rank 3 leaves a broadcast out, its score being the same; rank 4 waits for it, rank 2 for "
        "a key that rank 4 sets then, ranks 0 and 1 in the barrier",
        # Of the two of that group, rank 4 may have made a call too many. Stacks show no groups.
        (3,), (*ABSENT, *ALONE), undecided=(3, 4), undecided_untraced=_FIVE, world=5,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "regroup_expert_cached", "torch",
        "rank 2 does not receive an expert that it has; rank 1 waits for its isend, rank 3 for a "
        "message of rank 1, ranks 0 and 2 in new_group()",
        # By the calls, rank 1 may have sent one too many.
        (2,), (*PIPELINE, *ORDER), undecided=(1, 2), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "cache_lock_kept", "torch",
        "rank 3 has returned with a file locked and waits in the broadcast; the child of rank 4 "
        "waits for that lock, rank 4 for its child, rank 0 for the result of rank 4",
        # Records show no locks, only that rank 4 does not send: to name it is fair, as likely.
        (3,), (*HALT, *PIPELINE), undecided=(3, 4), most="likely", also=((4,),), world=5,
    ),
    Program(
        "service_conversation_open", "torch",
        "rank 1 enters the all_reduce in the middle of a conversation; the service of rank 0 "
        "waits for its next question, and rank 3 for an answer of that service",
        # Records show only that rank 3 does not come: to name it is fair, as likely.
        (1,), (*HALT, *ABSENT), undecided=(0, 1, 3), most="likely", also=((3,),),
    ),
    # Two faults
    Program(
        "two_child_and_skip", "torch",
        "two faults: rank 1 waits for a child that waits for its full pipe to be read, and rank 0 "
        "for rank 1; rank 4 leaves an all_gather out, in which rank 2 waits, and a task of rank 3",
        # Stacks show no groups.
        (1, 4), (*HALT, *ABSENT, *ORDER, "p2p_mismatch"), undecided_untraced=_FIVE, world=5,
    ),
    # Healthy
    Program(
        "healthy_packing_long", "torch",
        "nothing: rank 3 computes for up to 40 s before it sends to rank 1, the others wait for "
        "rank 1",
        hangs=False,
    ),
    Program(
        "healthy_leader_counts", "torch",
        "nothing: two leaders make more calls on their own group, one of them more on a group of "
        "itself, and waits for 14 s at times",
        hangs=False, world=5,
    ),
    Program(
        "healthy_uneven_pipes", "torch",
        "nothing: two pipelines have unequal numbers of microbatches, and wait for a child for "
        "15 s at times",
        hangs=False,
    ),
    Program(
        "healthy_idle_threads", "torch",
        "nothing: threads wait in a recv, for a queue and for the end, and rank 1 sleeps for 16 s "
        "at times",
        hangs=False, world=3,
    ),
]  # fmt: skip

TABLE = [replace(program, folder="strangers12/programs") for program in _ROWS]
PROGRAMS = {program.name: program for program in TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "flock_behind_uploader": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 12,
        "branch": 'if faulty and (self.rank, step) == (3, 11)', "call": "child.wait() of upload()",
        "story": "The child of rank 3 waits for a line on its standard input. Rank 3 holds the "
        "lock of optimizer.archive meanwhile; rank 2 waits in fcntl.flock() for it, rank 1 in "
        "dist.recv() for rank 2, rank 0 in the all_reduce of step 12.",
        "fair": "watch and diagnose: ranks 2 and 3, in no call, one of them or both.",
    },
    "rollout_env_unflushed": {
        "group": "actors (2, 3)", "op": "all_reduce", "calls": -1, "step": 8,
        "branch": "if flush:", "call": "return float(self.child.stdout.readline())",
        "story": "The command of rank 2 is in its buffer, and rank 2 waits for the answer. Rank 3 "
        "is in the all_reduce of the actors, rank 1 in link.recv() from rank 3, rank 0 in the "
        "all_reduce of the learners.",
        "fair": "watch and diagnose: ranks 1 and 2, each of which holds a group up; attach sees "
        "the connection of ranks 1 and 3.",
    },
    "loader_fifo_last_stage": {
        "group": "world", "op": "send to rank 1", "calls": -1, "step": 9,
        "branch": "if faulty and number == 9:",
        "call": "(outputs[:, 0] - next(self.labels)).square().mean().backward(); its worker: "
        'with (self.folder / f"{number:03d}.txt").open() as file:',
        "story": "The worker of rank 2 opens a FIFO without a writer, rank 2 waits for the worker. "
        "Rank 1 is in dist.recv() of the gradient from rank 2, rank 0 in that from rank 1.",
    },
    "simulator_not_resumed": {
        "group": "-", "op": "key scene/8", "calls": -1, "step": "version 8",
        "branch": "if resumed:", "call": "length = self.child.stdout.readline()",
        "story": "The simulator of rank 2 is stopped by SIGSTOP. Rank 2 waits for its line, rank 3 "
        "in store.get('scene/8'), the thread of rank 1 in dist.recv() from rank 3, its main thread "
        "in a queue, rank 0 in the all_reduce of the learners; rank 4 polls for weights-8.pt.",
        "fair": "ranks 2 and 4: neither is in a call, and either could set the key.",
    },
    "publisher_killed": {
        "group": "-", "op": "key rate/8", "calls": -1, "step": 8,
        "branch": "if faulty and 8 * len(self.history) > LIMIT:",
        "call": "os.kill(os.getpid(), signal.SIGKILL)",
        "story": "Rank 3 was killed by SIGKILL. Rank 2 waits in store.get('rate/8'), ranks 0 and 1 "
        "in the broadcast of the rate from rank 2.",
    },
    "tokenizer_busy_chain": {
        "group": "world", "op": "send to rank 1", "calls": -1, "step": 9,
        "branch": "size = 400_000 if faulty and step == 9 else 200", "call": "merge()",
        "story": "Rank 2 merges tokens of a long document. Rank 1 is in dist.recv() from it, ranks "
        "0 and 3 in the all_reduce of the trainers.",
    },
    "prefetch_shard_filtered": {
        "group": "of all ranks, the second", "op": "all_gather", "calls": -1, "step": "shard 17",
        "branch": "if size:", "call": "return self.ready.get()",
        "story": "The thread of rank 2 has ended after 17 all_gathers. The threads of its peers "
        "wait in the 18th; all main threads wait in queue.get().",
    },
    "exit_manifest_thread": {
        "group": "(1, 3)", "op": "send to rank 1", "calls": -1, "step": "the end",
        "branch": "if self.pending:", "call": "self.thread.join()",
        "story": "Rank 3 has put no None and waits for its thread, which waits in queue.get(). The "
        "thread of rank 1 is in dist.recv() from rank 3, its main thread waits for it at exit. "
        "Ranks 0 and 2 ended normally.",
    },
    "metric_thread_raised": {
        "group": "(2, 3)", "op": "send to rank 2", "calls": -1, "step": 7,
        "branch": "kind = 3 if faulty and step == 7 else step % 3", "call": "self.done.wait()",
        "story": "The thread of rank 3 ended by KeyError at NAMES[kind], its main thread waits for "
        "an event. A task of rank 2 is in dist.recv() from rank 3, its main thread waits for the "
        "task, ranks 0 and 1 are in monitored_barrier().",
    },
    "plan_nested_future": {
        "group": "world", "op": "barrier; key plan/9", "calls": -1, "step": 9,
        "branch": "if len(requests) > 8:",
        "call": "self.pool.submit(self.plan, step, requests).result(); its thread: part.result()",
        "story": "The only thread of rank 1's pool waits for tasks that it would have to run. Rank "
        "3 waits in store.get('plan/9'), ranks 0 and 2 in the barrier.",
    },
    "async_save_dropped": {
        "group": "of all ranks, the second", "op": "all_gather", "calls": -1, "step": "save of 11",
        "branch": "if self.unfinished:", "call": "dist.all_reduce(gradient)",
        "story": "Rank 2 takes the save of step 7 for unfinished and drops that of step 11. The "
        "threads of ranks 0, 1 and 3 are in the all_gather and hold their locks, their main "
        "threads wait for the locks in step 12; rank 2 is in the all_reduce of step 13.",
    },
    "logger_lock_order": {
        "group": "of all ranks, the second, before world", "op": "all_reduce; all_reduce",
        "calls": "the opposite order", "step": 14, "branch": "if spike:",
        "call": "dist.all_reduce(mean, group=self.group), by the logger, that holds the lock",
        "story": "The logger of rank 2 is in its all_reduce and holds the lock, for which its main "
        "thread waits. The main threads of ranks 0 and 1 are in the all_reduce of the gradient and "
        "hold their locks, for which their loggers wait.",
    },
    "blocks_ready_deferred": {
        "group": "(0, 2)", "op": "send to rank 0", "calls": -1, "step": "10",
        "branch": "if not is_full:",
        "call": "self.changed.wait_for(lambda step=step: self.ready >= step), by its thread",
        "story": "Rank 2 would say in step 11 that the blocks of step 10 are written. Its thread "
        "waits for that, a thread of rank 0 in dist.recv() from it, the main thread of rank 0 for "
        "that thread, rank 1 in dist.recv() from rank 0, rank 2 from rank 1, rank 3 from rank 2.",
        "fair": "any set of the cycle 0, 1, 2 without a name; rank 2 as likely or certain.",
    },
    "score_key_unchanged": {
        "group": "(3, 4)", "op": "broadcast", "calls": -1, "step": "version 9",
        "branch": "if torch.equal(score, self.last):", "call": "dist.barrier()",
        "story": "Rank 3 is in the barrier, having returned. Rank 4 is in the broadcast of their "
        "group, rank 2 in store.get() of the score, ranks 0 and 1 in the barrier.",
    },
    "regroup_expert_cached": {
        "group": "world", "op": "irecv from rank 1", "calls": -1, "step": "round 8",
        "branch": "if expert not in self.cache:", "call": "self.group = dist.new_group(...)",
        "story": "Rank 2 has expert 5 and receives nothing: it is in new_group(), as rank 0. Rank "
        "1 waits for its isend to rank 2, rank 3 in dist.recv() from rank 1.",
    },
    "cache_lock_kept": {
        "group": "world", "op": "send to rank 0", "calls": "-1 of rank 4", "step": "round 7",
        "branch": "if value != value:",
        "call": "assert self.answers.get() == number of rank 4; its child: fcntl.flock()",
        "story": "Rank 3 has returned from add() without unlocking results.cache. The child of "
        "rank 4 waits for that lock, rank 4 for the child, rank 0 in dist.recv() from any source; "
        "ranks 1, 2 and 3 are in the broadcast from rank 0.",
        "fair": "watch and diagnose: rank 4, as likely; attach sees the lock and its holder.",
    },
    "service_conversation_open": {
        "group": "world", "op": "all_reduce", "calls": "-1 of rank 3", "step": 8,
        "branch": "if not self.again(step):",
        "call": "dist.all_reduce(gradient) of rank 1; sample = torch.tensor(client.recv()) of rank "
        "3; while (number := client.recv()) >= 0: of rank 0's thread",
        "story": "Rank 1 keeps its connection open over the all_reduce. The service of rank 0 "
        "waits for rank 1's next question, rank 3 for that service; ranks 0, 1 and 2 are in the "
        "all_reduce.",
        "fair": "rank 3, as likely, in watch and diagnose; attach sees both connections.",
    },
    "two_child_and_skip": {
        "group": "world; (2, 3, 4)", "op": "send to rank 0; all_gather", "calls": "-1; -1",
        "step": "10 of rank 1; 11 of rank 4",
        "branch": "size = 300_000 if faulty and step == 10 else 3_000; "
        "return [] if faulty and (self.rank, step) == (FILTERED, 11)",
        "call": "1: child.wait(); 4: dist.barrier()",
        "story": "The child of rank 1 waits for its pipe to be read, rank 1 for the child, rank 0 "
        "in dist.recv() from rank 1. Rank 4 is in the barrier; rank 2 waits in the all_gather of "
        "the language group, and a task of rank 3, for which its main thread waits.",
    },
}  # fmt: skip
