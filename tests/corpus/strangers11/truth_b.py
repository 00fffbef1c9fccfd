"""What is wrong in twenty programs of this folder: written before any tool was run on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.corpus.runner.truth import (
    ABSENT,
    ALONE,
    ATTACH,
    DIAGNOSE,
    HALT,
    PIPELINE,
    UNTRACED,
    WATCH,
    Program,
)

__all__ = ["PROGRAMS", "STORIES", "TABLE"]

_ALL = (0, 1, 2, 3)
_FIVE = (*_ALL, 4)
_SIX = (*_FIVE, 5)
_EIGHT = (*_SIX, 6, 7)
_ANY_WAY = (ATTACH, WATCH, DIAGNOSE, UNTRACED)

_ROWS = [
    # Engines and their workers
    Program(
        "shm_slot_unreleased", "torch",
        "rank 2 keeps a slot of the ring in shared memory, with an adapter in it that nobody uses; "
        "rank 0 waits for the slot, its workers for the next message",
        # None is in a call, and all have made the same; which reader has the slot shows nowhere.
        (2,), (*HALT, "missing_call"), undecided=_ALL, unknown_in=_ANY_WAY, also=((0,),),
        busy=_ALL,
    ),
    Program(
        "rpc_reply_rank", "torch",
        "rank 3 sends the driver no answer where it has no result; rank 0 waits for it at a "
        "socket, and the workers for the next call in a broadcast from rank 0",
        # No record holds who has left out an answer; what shows is that rank 0 does not come.
        (3,), (*HALT, *ABSENT), undecided=_ALL, also=((0,),),
    ),
    Program(
        "kv_pool_growth", "torch",
        "rank 2 waits for a page, all of which it has given to prompts that wait for their turn",
        (2,), (*HALT, "missing_call"),
    ),
    Program(
        "wave_start_stale", "torch",
        "rank 4 has counted one wave twice, ignores the start of the next one and waits for "
        "another message",
        (4,), (*HALT, "missing_call"), world=6,
    ),
    # Point to point
    Program(
        "full_hit_no_notify", "torch",
        "rank 5 has all blocks of a prompt, and does not say that it has read them; rank 1 waits "
        "for that",
        # Rank 1 may wait for a word too many: the two alone differ about it.
        (5,), (*PIPELINE, "order_cycle", "stalled"), undecided=(1, 5), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    Program(
        "pp_sampled_broadcast", "torch",
        "rank 1 takes one chunk too early for the end of a prompt, and waits for a token by a "
        "broadcast that its peers do not make",
        # Stacks: rank 1 alone waits for a handle, the others send or receive.
        (1,), (*ALONE, *ABSENT, "order_cycle", "stalled"), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "loop_blocked_recv", "torch",
        "rank 2 receives a large block in the thread of its event loop, so that it does not answer "
        "a look-up that rank 1 waits for before it sends the block",
        # The two wait for each other; rank 2 has taken the look-up, and answers none.
        (2,), (*PIPELINE, "order_cycle", "stalled"), undecided=(1, 2), undecided_untraced=_ALL,
        unknown_in=(UNTRACED,),
    ),
    Program(
        "ring_leavers_successor", "torch",
        "rank 2 takes its new neighbour in the ring from an old table, and sends to rank 4, which "
        "has left; rank 5 waits for rank 2",
        (2,), (*PIPELINE, "order_cycle", "stalled"), undecided_untraced=_SIX,
        unknown_in=(UNTRACED,), world=6,
    ),
    # Stores and restarts
    Program(
        "restart_swallowed", "torch",
        "rank 4 catches the exception that asks for a restart as a failure of its source, and goes "
        "on with the old group; its peers make a new one",
        (4,), (*ABSENT, *ALONE, "init_stalled"), world=5,
    ),
    Program(
        "store_client_shared", "torch",
        "rank 3 reports to the store over a connection on which its thread waits for a command",
        (3,), (*HALT, "missing_call"),
    ),
    Program(
        "store_cas_cached", "torch",
        "rank 1 offers an old value of a registry again and again, which it reads from its cache",
        (1,), (*HALT, "missing_call"), busy=(1,), unknown_in=(UNTRACED,),
    ),
    # Threads, locks, processes and memory
    Program(
        "callback_under_lock", "torch",
        "rank 3 asks rank 0's service with a lock taken, which its own service needs in order to "
        "answer rank 0",
        (3,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "select_after_buffer", "torch",
        "rank 0 waits at a socket for a line that it has in its buffer already",
        (0,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "notify_one_waiter", "torch",
        "rank 1 has one more thread that waits for a condition, and takes the only notification",
        (1,), (*HALT, "missing_call"), world=5,
    ),
    Program(
        "halo_shm_generation", "torch",
        "rank 2 counts two generations in one step, so that it waits for its neighbours and they "
        "for it, in shared memory",
        # Three of six poll in one line; that rank 2 is between the other two is all that shows.
        (2,), (*HALT, "missing_call"), undecided=(1, 2, 3), unknown_in=(UNTRACED,),
        also=((1, 2, 3),), busy=(1, 2, 3), world=6,
    ),
    # Two faults
    Program(
        "two_logprobs_and_mtime", "torch",
        "two faults: rank 1 gathers for a request that was aborted; rank 6 waits for a file to "
        "become newer, which was put back to an older one",
        # Stacks show no groups: one gathers, one polls, and six are in all_reduces.
        (1, 6), (*ALONE, *HALT, "missing_call"), undecided_untraced=_EIGHT,
        unknown_in=(UNTRACED,), busy=(6,), world=8,
    ),
    # Healthy
    Program(
        "healthy_ring_backpressure", "torch",
        "nothing: rank 0 waits for room in shared memory, while one reader pauses for 11 to 13 s",
        hangs=False, busy=_ALL,
    ),
    Program(
        "healthy_child_restarted", "torch",
        "nothing: the child of another rank ends at times and takes 9 to 13 s to start again",
        hangs=False,
    ),
    Program(
        "healthy_abort_irecv", "torch",
        "nothing: threads wait for a stop all along, tasks take 1 to 13 s, rank 0 waits in order",
        hangs=False, world=5,
    ),
    Program(
        "healthy_prefill_burst", "torch",
        "nothing: a prompt takes 13 s, sends stay pending, decoding ranks go on or poll meanwhile",
        hangs=False, world=6,
    ),
]  # fmt: skip

TABLE = [replace(program, folder="strangers11/programs") for program in _ROWS]
PROGRAMS = {program.name: program for program in TABLE}

STORIES: dict[str, dict[str, Any]] = {
    "shm_slot_unreleased": {
        "group": "world", "op": "all_reduce", "calls": "0", "step": "25, adapter-2",
        "branch": "if self.spare < len(view):",
        "call": "0: time.sleep(0.002) of write(); others: time.sleep(0.002) of read()",
        "story": "Rank 2 has room for two adapters and leaves the third in its slot until it is "
        "used. Rank 0 comes round to that slot and polls for it, ranks 1 to 3 poll for the next "
        "message; all have made the same calls.",
    },
    "rpc_reply_rank": {
        "group": "world", "op": "broadcast from 0", "calls": "-1 of rank 0", "step": 7,
        "branch": "if result is not None:",
        "call": "return json.loads(self.lines[rank].readline())",
        "story": "All rows are at their end in step 7, so that rank 3 returns None and sends no "
        "answer. Rank 0 waits for it at the socket, ranks 1 to 3 are in the broadcast of the next "
        "call.",
    },
    "kv_pool_growth": {
        "group": "decoding (1-3)", "op": "all_reduce", "calls": -1,
        "step": "fourth token of request 9", "branch": "while self.free < count:",
        "call": "self.changed.wait()",
        "story": "The three prompts of a wave fill the pool of rank 2, and the first of them needs "
        "another page to grow. Ranks 1 and 3 wait in the all_reduce, rank 0 in a send of the next "
        "wave, threads for their turn.",
    },
    "wave_start_stale": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "wave 3",
        "branch": "if message['wave'] >= self.wave:", "call": "message = self.inbox.get()",
        "story": "Rank 4 adds one to its wave when its request is done, and one more when all are. "
        "It takes the start of wave 3 for an old one; its peers wait in the all_reduce of experts.",
    },
    "full_hit_no_notify": {
        "group": "world", "op": "send to 1 (tag 4)", "calls": -1, "step": "request 5",
        "branch": "if not missing:", "call": "dist.recv(hashes, src=self.source, tag=META)",
        "story": "Rank 5 has all blocks of request 5 in its larger cache and returns before it "
        "says that it is done. Rank 1 waits for that, ranks 4 and 5 for the next request of rank "
        "1, ranks 2 and 3 in the all_reduce of the next request, and rank 0 for them.",
    },
    "pp_sampled_broadcast": {
        "group": "tokens (0-3)", "op": "broadcast from 3", "calls": +1,
        "step": "request 4, fourth chunk", "branch": "if request.advance():",
        "call": "work.wait() of land()",
        "story": "Rank 1 begins to count at 32 for a block that its cache has, and is at the "
        "end one chunk early. It waits for a token before the last chunk; rank 0 waits in a send "
        "to rank 1, ranks 2 and 3 in receives.",
    },
    "loop_blocked_recv": {
        "group": "world", "op": "recv from 1 (tag 3) before send to 1 (tag 2)", "calls": "0",
        "step": 5, "branch": "if len(room) > self.polled:",
        "call": "dist.recv(room, src=OWNER, tag=BLOCK)",
        "story": "Rank 2 waits for a block of 256 rows in the thread of its loop, so that the "
        "other coroutine does not answer. Rank 1 waits for that answer, ranks 0 and 3 in the "
        "all_reduce.",
    },
    "ring_leavers_successor": {
        "group": "world", "op": "isend to 4 instead of 5 (tag 1)", "calls": "another peer",
        "step": "round 7", "branch": "self.after(self.right) if self.by_table",
        "call": "sent.wait()",
        "story": "Rank 3 leaves and names rank 5 to rank 2, which sends to rank 4, gone before. "
        "Rank 5 waits for a block of rank 2, ranks 0 and 1 for notes, ranks 3 and 4 in the last "
        "barrier.",
    },
    "restart_swallowed": {
        "group": "first of all ranks", "op": "all_reduce of the old group; peers: new_group",
        "calls": "+1 in the old group", "step": 5, "branch": "except self.errors:",
        "call": "dist.all_reduce(gradient, group=wrapper.group)",
        "story": "Rank 4 tries its source five times for Restart and goes on with zeros. It waits "
        "in the all_reduce of the old group, its peers in new_group().",
    },
    "store_client_shared": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "4 or 5",
        "branch": "connect() if connections > 1 else self.store",
        "call": "self.store.set(f'alive/{self.rank}', str(step))",
        "story": "The thread of rank 3 waits in store.get() for the first command, and holds the "
        "connection for as long, so that its main thread waits in store.set(). Its peers wait in "
        "the all_reduce.",
    },
    "store_cas_cached": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "epoch 3",
        "branch": "if key not in self.values or now - self.values[key][0] >= self.seconds:",
        "call": "time.sleep(0.01) of claim()",
        "story": "Rank 1 keeps what it has read for two hours, and its compare_set() never "
        "finds the value that it expects. Its peers have claimed their shards and wait in the "
        "all_reduce.",
    },
    "callback_under_lock": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 5,
        "branch": "self.versions = dict.fromkeys(self.versions, -1)",
        "call": "return json.loads(connection.makefile().readline())",
        "story": "Rank 3 holds its lock while it asks rank 0, whose service asks rank 3 what it "
        "has; a thread of rank 3 waits for the lock to answer. All main threads but that of rank 3 "
        "are in the all_reduce.",
    },
    "select_after_buffer": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": 6,
        "branch": "while len(found) < len(texts):", "call": "select.select([self.lines], [], [])",
        "story": "Both lines for rank 0 come in one piece, and the first readline() takes them "
        "from the socket. Rank 0 waits in select() for the second one, its peers in the "
        "all_reduce.",
    },
    "notify_one_waiter": {
        "group": "world", "op": "all_reduce", "calls": -1, "step": "epoch 2",
        "branch": "monitor.start()", "call": "self.changed.wait() of get()",
        "story": "The monitor of rank 1 waits for the same condition as its loop and its loader, "
        "and notify() wakes the monitor. All three threads wait then; the peers of rank 1 wait in "
        "the all_reduce.",
    },
    "halo_shm_generation": {
        "group": "world", "op": "all_reduce", "calls": "-1 of ranks 1, 2 and 3", "step": 6,
        "branch": "return 2 if steep else 1", "call": "time.sleep(0.002) of read()",
        "story": "Rank 2 is at generation 8 and waits for 8 of its neighbours, which are at 7 and "
        "wait for 7 of rank 2. Ranks 0, 4 and 5 wait in the all_reduce.",
    },
    "two_logprobs_and_mtime": {
        "group": "first (0-3): +1; second (4-7): 6 never comes", "op": "all_gather; all_reduce",
        "calls": "+1; -1", "step": "7 of rank 1; version 9 of rank 6",
        "branch": "if not aborted or not faulty or self.rank != 1:; "
        "if self.by_time and self.file.stat().st_mtime_ns <= self.seen:",
        "call": "1: dist.all_gather(parts, ...); 6: time.sleep(0.01) of wait()",
        "story": "Rank 1 still wants the probabilities of the aborted request 6 and gathers, ranks "
        "0, 2 and 3 wait in the next all_reduce. Version 9 has the time of version 5, so that rank "
        "6 does not see it; ranks 4, 5 and 7 wait in their all_reduce.",
    },
}  # fmt: skip
