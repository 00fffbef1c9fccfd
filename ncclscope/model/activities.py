"""Names of the activities that probes note and analysis explains."""

from __future__ import annotations

INIT = "init_process_group"
"""The detail is the backend and the line of the program, the number the timeout in seconds."""
COMM_INIT = "comm_init"
"""``ncclCommInitRank``; the number is the size of the communicator."""
STORE_WAIT = "store_wait"
"""A blocking call on a store; the detail is the method and the key, the number the timeout."""
AGAIN_NS = 2_000_000_000
"""A call on a store for the same thing within this time after the last one continues it."""
STORE_PLACE = "store_place"
"""The store that the process served or connected to last, as ``HOST:PORT``; it ends at once."""
STORE_SET = "store_set"
"""The newest key that the process has set, as the detail."""
COMPILE = "compile"
"""torch.compile; the detail is the compiled function and its line."""
LOAD = "load"
"""A file that is loaded or downloaded; the detail says by what."""
RAISED = "raised"
"""The newest exception; the detail is its type and the line, the number 1 if a thread ended."""
CPU = "cpu"
"""CPU time since the newest call: since the first heartbeat after it, the process and those that it
started have used as many microseconds as the number. It lasts as long as there are heartbeats."""
ASLEEP = "asleep"
"""One timed sleep of the main thread, noted while no call is posted, from the heartbeat on that saw
it first; it ends as many milliseconds after that as the number, at the latest."""
WORKER_DIED = "worker_died"
"""In an engine: a worker that ended unexpectedly; the detail is its name and its exit status, as
vLLM logs them, and the number is its place among the engine's workers, from 1."""
WORK = "work"
"""Detail of a ``dequeue`` that waits for as long as it takes: a worker's, for what comes next."""
INPUT = "input"
"""In an engine: it waits for requests, or takes them in."""
ASKED = "asked"
"""In an engine: it carries out what a client asked; the detail is the method, if it is one."""
UNSCHEDULED = "unscheduled"
"""In an engine: no step has had tokens since, though requests wait; the number is how many, the
detail what its scheduler counts."""
PAUSED = "paused"
"""In an engine: its scheduler is paused; the number is 1 for new requests, 2 for all."""
REQUESTS = "requests"
"""In a server, or a program with an engine: requests without a whole answer, as many as the number,
and the newest part of an answer came when it began."""
LOOP = "loop"
"""In a server: its event loop, which ran last when it began."""
