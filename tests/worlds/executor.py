"""Carry out the programs of a world, by the documented semantics of NCCL and gloo.

Threads of a process act independently of each other, except that a process exits when all are
through, and that none acts while another one starts a group.

NCCL: the host goes on after enqueuing. The kernels of a rank run one after the other on each
stream, those of an NCCL group together. A collective completes when the n-th call of all members
of its communicator has come to the head of its stream, with parameters that fit.

gloo: a call returns when what it needs of others has come: all members, or for a broadcast the
ranks between it and the root and those that it passes the data on to. A group of transfers is
started together and then waited for. A rank that is sent more bytes than it expects aborts; fewer
fit. Where the connection to a process that is gone is known to be broken, who waits for it fails.

Reductions need not agree: the data is wrong then, and all goes on. Other calls that do not fit
hang.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.worlds.world import ENDINGS, HOLDS, Act, World

__all__ = ["BEGAN_NS", "BUSY_NS", "QUIET_NS", "Execution", "Outcome", "Posted", "play"]

BEGAN_NS = 1_795_000_000 * 10**9
STEP_NS = 10**6
QUIET_NS = 600 * 10**9
BUSY_NS = 40 * 10**9

ThreadId = tuple[int, int]
"""A rank and the number of one of its threads."""


@dataclass(eq=False)
class Posted:
    """A call that a rank has made.

    Attributes:
        act: The call.
        index: Its place in the program.
        time_ns: When.
        number: Its number among the calls that are paired with the same ones, from 0.
        done_ns: When it completed; 0 if it did not.
    """

    act: Act
    index: int
    time_ns: int
    number: int
    done_ns: int = 0


@dataclass
class Outcome:
    """How far a job came.

    Attributes:
        posted: Calls of each rank, in order.
        begun: Number of acts that each rank has begun.
        reached: The place in its program of the last of them, by thread.
        ended: How processes ended: ``exit``, ``kill``, ``raise``, or ``lost`` with an error
            because a connection broke.
        last_seen_ns: Last sign of life of each rank.
        observed_ns: When the records were taken.
        final: Whether nothing moves, but for ranks that are busy.
        held: Ranks that are held up outside of any call: what holds them.
        finished: Ranks that have come to the end of their program.
    """

    posted: list[list[Posted]]
    begun: list[int]
    reached: list[dict[int, int]]
    ended: dict[int, str] = field(default_factory=dict)
    last_seen_ns: list[int] = field(default_factory=list)
    observed_ns: int = 0
    final: bool = True
    held: dict[int, str] = field(default_factory=dict)
    finished: frozenset[int] = frozenset()

    def stuck(self) -> dict[int, Posted]:
        """Return the oldest call of each rank that has not completed."""
        pending = {
            rank: next((each for each in calls if not each.done_ns), None)
            for rank, calls in enumerate(self.posted)
        }
        return {rank: call for rank, call in pending.items() if call is not None}


def play(world: World) -> Outcome:
    """Carry a world out until nothing moves, or until the moment at which it is observed."""
    whole = Execution(world).run(None)
    if world.running is None:
        return whole
    return Execution(world).run(max(1, int(world.running * sum(whole.begun))))


class Execution:
    """A world that is carried out act by act."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random.Random(world.seed)
        self._clock = BEGAN_NS
        self._acts: dict[ThreadId, list[int]] = {}
        for rank, program in enumerate(world.programs):
            self._acts[rank, 0] = []
            for place, act in enumerate(program):
                self._acts.setdefault((rank, act.thread), []).append(place)
        self._next = dict.fromkeys(self._acts, 0)
        self._open: dict[int, int] = {}
        self._posted: list[list[Posted]] = [[] for _ in range(world.size)]
        self._pending: list[list[Posted]] = [[] for _ in range(world.size)]
        self._queues: dict[tuple[object, ...], list[Posted]] = {}
        self._ended: dict[int, tuple[str, int]] = {}
        self._held: dict[ThreadId, str] = {}
        self._until: dict[ThreadId, int] = {}
        self._stopped: dict[int, int] = {}
        self._left: set[int] = set()

    def run(self, acts: int | None) -> Outcome:
        """Let ranks act in a random order, `acts` times or until nothing moves."""
        count = 0
        while acts is None or count < acts:
            ready = self.ready()
            if not ready:
                if not self._until or acts is not None:
                    break
                thread = min(self._until, key=lambda each: (self._until[each], each))
                self._clock = max(self._clock, self._until.pop(thread))
                continue
            self.step(self._random.choice(ready))
            count += 1
        return self.outcome(final=not self.ready())

    def ready(self) -> list[ThreadId]:
        """Return rank and thread of those that can act."""
        return [thread for thread in self._acts if self._may_act(thread)]

    def step(self, thread: ThreadId) -> None:
        """Let one that can act do so."""
        self._clock += STEP_NS + self._random.randrange(STEP_NS)
        self._act(thread)

    def _may_act(self, thread: ThreadId) -> bool:
        rank, number = thread
        if rank in self._world.absent or rank in self._ended or rank in self._stopped:
            return False
        if thread in self._held or thread in self._until or rank in self._left:
            return False
        if self._open.get(rank, number) != number:
            return False  # the other thread is in the middle of a group
        if self._following(thread) is None:
            return number == 0 and self._is_through(rank)
        return not self._blocked(thread)

    def _following(self, thread: ThreadId) -> Act | None:
        places = self._acts[thread]
        number = self._next[thread]
        return self._world.programs[thread[0]][places[number]] if number < len(places) else None

    def _is_through(self, rank: int) -> bool:
        """Return whether all threads of a process and all its calls have come to their end."""
        return not self._pending[rank] and all(
            self._following(thread) is None and thread not in (*self._held, *self._until)
            for thread in self._acts
            if thread[0] == rank
        )

    def _blocked(self, thread: ThreadId) -> bool:
        """Return whether the host waits for one of a thread's calls."""
        rank, number = thread
        pending = [each for each in self._pending[rank] if each.act.thread == number]
        if not pending:
            return False
        if self._world.backend == "nccl":
            return any(each.act.waits for each in pending)
        batch = pending[-1].act.batch
        following = self._following(thread)
        return not batch or following is None or following.batch != batch

    def _act(self, thread: ThreadId) -> None:
        rank, number = thread
        act = self._following(thread)
        if act is None:
            if not self._world.lingers:
                self._ended[rank] = "exit", self._clock
                self._settle()
            self._left.add(rank)
            return
        place = self._acts[thread][self._next[thread]]
        self._next[thread] += 1
        following = self._following(thread)
        if act.batch and following is not None and following.batch == act.batch:
            self._open[rank] = number
        else:
            self._open.pop(rank, None)
        if act.op in ENDINGS:
            self._ended[rank] = act.op, self._clock
            # Kernels of a process that is gone do not run.
            self._pending[rank].clear()
        elif act.op == "busy":
            self._until[thread] = self._clock + BUSY_NS
        elif act.op in HOLDS:
            self._held[thread] = act.op
            if act.op == "stop":
                self._stopped[rank] = self._clock
        else:
            self._post(rank, place, act)
        self._settle()

    def _post(self, rank: int, place: int, act: Act) -> None:
        queue = self._queues.setdefault(self._key(rank, act), [])
        posted = Posted(act, place, self._clock, len(queue))
        queue.append(posted)
        self._posted[rank].append(posted)
        self._pending[rank].append(posted)

    def _key(self, rank: int, act: Act) -> tuple[object, ...]:
        """Return what is paired by number: the calls of a rank, or the transfers of a pair."""
        if not act.is_p2p:
            return act.comm, rank
        other = self._world.comms[act.comm][act.peer or 0]
        pair = (rank, other) if act.op == "send" else (other, rank)
        return act.comm, *pair, act.op

    # --- completion -------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Complete all that can complete, and end what fails."""
        moved = True
        while moved:
            moved = False
            for rank in range(self._world.size):
                for posted in list(self._heads(rank)):
                    if posted.done_ns or not self._can_complete(rank, posted):
                        continue
                    moved = True
                    for each, call in self._together(rank, posted):
                        call.done_ns = self._clock
                        self._pending[each].remove(call)
            moved = moved or self._fail()

    def _heads(self, rank: int) -> Iterator[Posted]:
        """Yield the calls of a rank that run, behind none that was enqueued earlier."""
        if self._world.backend == "gloo":
            yield from self._pending[rank]
            return
        first: dict[int, Posted] = {}
        for posted in self._pending[rank]:
            head = first.setdefault(self._world.streams.get(posted.act.comm, 0), posted)
            if head is posted or (head.act.batch and head.act.batch == posted.act.batch):
                yield posted

    def _partners(self, rank: int, posted: Posted) -> Iterator[tuple[int, Posted | None]]:
        """Yield the calls of others that a call needs; None for those that have not come."""
        act = posted.act
        members = self._world.comms[act.comm]
        if act.is_p2p:
            other = members[act.peer or 0]
            mine = members.index(rank)
            opposite = Act("recv" if act.op == "send" else "send", act.comm, peer=mine)
            yield other, self._nth(other, opposite, posted.number)
            return
        if act.op == "broadcast" and self._world.backend == "gloo":
            yield from self._tree(rank, posted)
            return
        for member in members:
            if member != rank:
                yield member, self._nth(member, act, posted.number)

    def _tree(self, rank: int, posted: Posted) -> Iterator[tuple[int, Posted | None]]:
        """Yield who sends to a rank in gloo's broadcast, who to that one, and who receives from it.

        Each rank goes by its own root.
        """
        members = self._world.comms[posted.act.comm]
        size = len(members)
        mine = members.index(rank)
        for member in range(size):
            if _parent(member, posted.act.root or 0, size) == mine:
                yield members[member], self._nth(members[member], posted.act, posted.number)
        above: int | None = mine
        call: Posted | None = posted
        seen = {mine}
        while call is not None:
            above = _parent(above or 0, call.act.root or 0, size)
            if above is None:
                return
            call = self._nth(members[above], posted.act, posted.number)
            yield members[above], call
            if above in seen or (call is not None and call.act.op != "broadcast"):
                return
            seen.add(above)

    def _nth(self, rank: int, act: Act, number: int) -> Posted | None:
        queue = self._queues.get(self._key(rank, act), ())
        return queue[number] if number < len(queue) else None

    def _can_complete(self, rank: int, posted: Posted) -> bool:
        for other, call in self._partners(rank, posted):
            if call is None:
                return False
            if self._world.backend == "nccl":
                if not _fits(posted.act, call.act):
                    return False
                if not call.done_ns and call not in self._heads(other):
                    return False
            elif not self._goes_through(rank, posted, other, call):
                return False
        return self._world.backend == "nccl" or self._receives(rank, posted)

    def _fail(self) -> bool:
        """End the processes that gloo ends; return whether there were any."""
        if self._world.backend != "gloo":
            return False
        gone = set(self._ended) if self._world.severed else set()
        failed = {}
        for rank in range(self._world.size):
            for posted in self._pending[rank]:
                partners = list(self._partners(rank, posted))
                if any(self._overruns(rank, posted, *partner) for partner in partners):
                    failed[rank] = "kill"
                elif any(
                    each in gone
                    and not self._has_served(rank, posted, each, call)
                    and self._notices(rank, posted, each)
                    for each, call in partners
                ):
                    failed[rank] = "lost"
        for rank, how in failed.items():
            self._ended[rank] = how, self._clock
            self._pending[rank].clear()
        return bool(failed)

    def _notices(self, rank: int, posted: Posted, other: int) -> bool:
        """Return whether gloo fails a call because a process that it needs is gone.

        A reduction first waits for what it receives. It learns only then that it cannot send,
        unless the process was gone when it began.
        """
        members = self._world.comms[posted.act.comm]
        source = members[(members.index(rank) + 1) % len(members)]
        if _kind(posted.act) != "all_reduce" or other == source:
            return True
        return self._ended[other][1] < posted.time_ns

    def _has_served(self, rank: int, posted: Posted, other: int, call: Posted | None) -> bool:
        """Return whether a process that is gone did its part of a call of gloo before."""
        if call is None:
            return False
        if posted.act.op in ("send", "broadcast") and self._overruns(other, call, rank, posted):
            return True  # it has received, and ended of that
        return bool(call.done_ns) and self._goes_through(rank, posted, other, call)

    def _goes_through(self, rank: int, posted: Posted, other: int, call: Posted) -> bool:
        """Return whether gloo's calls of two ranks exchange what each expects of the other."""
        act, theirs = posted.act, call.act
        if act.is_p2p:
            return not self._overruns(rank, posted, other, call)
        if act.op != "broadcast":
            return _kind(act) == _kind(theirs) and _bytes(act) == _bytes(theirs)
        if theirs.op != "broadcast":
            return False
        # Whether the ranks further up pass the data on is checked by `_receives`. Data that is too
        # much for the receiver has been sent all the same.
        return self._sender(other, call) != rank or self._is_child(rank, posted, other)

    def _sender(self, rank: int, posted: Posted) -> int | None:
        """Return from whom a rank receives in gloo's broadcast, by its own root."""
        members = self._world.comms[posted.act.comm]
        parent = _parent(members.index(rank), posted.act.root or 0, len(members))
        return None if parent is None else members[parent]

    def _sends(self, rank: int, posted: Posted, other: int, call: Posted) -> bool:
        """Return whether a rank sends to another one in gloo's broadcast what that one expects."""
        return self._is_child(rank, posted, other) and _bytes(posted.act) <= _bytes(call.act)

    def _is_child(self, rank: int, posted: Posted, other: int) -> bool:
        """Return whether a rank sends to another one in gloo's broadcast, by its own root."""
        members = self._world.comms[posted.act.comm]
        parent = _parent(members.index(other), posted.act.root or 0, len(members))
        return parent is not None and members[parent] == rank

    def _receives(self, rank: int, posted: Posted) -> bool:
        """Return whether a broadcast's data comes to a rank, and goes on to those it sends to."""
        if posted.act.op != "broadcast":
            return True
        members = self._world.comms[posted.act.comm]
        for member, other in enumerate(members):
            if _parent(member, posted.act.root or 0, len(members)) == members.index(rank):
                call = self._nth(other, posted.act, posted.number)
                if call is None or self._sender(other, call) != rank:
                    return False
        above, call = rank, posted
        for _ in members:
            sender = self._sender(above, call)
            if sender is None:
                return True
            sent = self._nth(sender, posted.act, posted.number)
            if sent is None or sent.act.op != "broadcast":
                return False
            if not self._sends(sender, sent, above, call):
                return False
            above, call = sender, sent
        return False

    def _overruns(self, rank: int, posted: Posted, other: int, call: Posted | None) -> bool:
        """Return whether another rank sends more bytes than a rank expects of it."""
        act = posted.act
        if call is None or (act.op != "recv" and _kind(call.act) != _kind(act)):
            return False
        members = self._world.comms[act.comm]
        if act.is_p2p:
            sends = act.op == "recv"
        elif act.op == "broadcast":
            parent = _parent(members.index(rank), call.act.root or 0, len(members))
            sends = (
                self._sender(rank, posted) == other
                and parent is not None
                and members[parent] == other
            )
        elif act.op == "all_to_all":
            sends = True
        else:
            # Reductions go round the ring one way, gathered data the other way.
            step = 1 if _kind(act) == "all_reduce" else -1
            sends = members.index(other) == (members.index(rank) + step) % len(members)
        return sends and _bytes(call.act) > _bytes(act)

    def _together(self, rank: int, posted: Posted) -> list[tuple[int, Posted]]:
        """Return the calls that complete at once: on NCCL those of all members."""
        own = [(rank, posted)]
        if self._world.backend == "gloo":
            return own
        return own + [
            (other, call) for other, call in self._partners(rank, posted) if call is not None
        ]

    # --- outcome ----------------------------------------------------------------------------------

    def outcome(self, *, final: bool) -> Outcome:
        """Return how far the job has come; `final` if nothing moves any more."""
        world = self._world
        observed = self._clock
        if final:
            quiet = int(world.loss.killed_after * 1e9) or QUIET_NS
            observed = min(self._until.values(), default=observed + quiet)
        begun = [0] * world.size
        reached: list[dict[int, int]] = [{} for _ in range(world.size)]
        for (rank, thread), number in self._next.items():
            begun[rank] += number
            if number:
                reached[rank][thread] = self._acts[rank, thread][number - 1]
        outcome = Outcome(self._posted, begun, reached, observed_ns=observed, final=final)
        outcome.held = {rank: "busy" for rank, _ in self._until}
        outcome.held.update({rank: how for (rank, _), how in self._held.items()})
        outcome.finished = frozenset(self._left)
        for rank in range(world.size):
            seen = observed
            if rank in self._ended:
                outcome.ended[rank], seen = self._ended[rank]
            elif rank in self._stopped:
                seen = self._stopped[rank]
            outcome.last_seen_ns.append(seen)
        return outcome


def _bytes(act: Act) -> int:
    elements, width = act.size
    return elements * width


def _kind(act: Act) -> str:
    """Return what gloo's calls that meet have in common: its reduce_scatter is an all_reduce."""
    return "all_reduce" if act.op == "reduce_scatter" else act.op


def _fits(one: Act, two: Act) -> bool:
    """Return whether two members' calls complete each other on NCCL."""
    if one.is_p2p:
        return one.size == two.size
    return (one.op, one.root, one.size) == (two.op, two.root, two.size)


def _parent(member: int, root: int, size: int) -> int | None:
    """Return from whom a member of gloo's broadcast receives; None for the root.

    The ranks form a binomial tree: the parent is the one whose number, counted from the root,
    lacks the highest bit.
    """
    number = (member - root) % size
    if not number:
        return None
    return ((number ^ (1 << number.bit_length() - 1)) + root) % size
