"""All small jobs: up to three ranks, up to four calls a rank, two communicators, one fault."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tests.worlds.executor import Execution, Outcome
from tests.worlds.world import Act, World

__all__ = [
    "Job",
    "Records",
    "Setting",
    "at",
    "edits",
    "ends",
    "finish",
    "healthy",
    "jobs",
    "moments",
    "reach",
    "records_of",
    "settings",
]

WORLD, PAIR = "world", "pair"
_OPS = ("all_reduce", "all_gather", "barrier", "broadcast")


@dataclass(frozen=True)
class Setting:
    """What holds for all programs of a job.

    Attributes:
        size: World size.
        backend: ``nccl`` or ``gloo``.
        alike: Whether its calls differ in their lines alone, and not in what they do.
    """

    size: int
    backend: str
    alike: bool

    @property
    def comms(self) -> dict[str, tuple[int, ...]]:
        """Members of the communicators: all ranks, and ranks 0 and 1."""
        return {WORLD: tuple(range(self.size)), PAIR: (0, 1)}

    def letter(self, comm: str, number: int) -> Act:
        """Return the n-th call of a communicator that occurs in a program."""
        op = "all_reduce" if self.alike else _OPS[number % len(_OPS)]
        line = 10 * (number + 1) + (100 if comm == PAIR else 0)
        return _call(op, comm, line)

    def world(self, programs: Sequence[Sequence[Act]], absent: tuple[int, ...] = ()) -> World:
        """Return the world in which each rank has a program."""
        return World(
            self.size,
            self.backend,
            self.comms,
            [list(program) for program in programs],
            absent=absent,
            severed=self.backend == "gloo",
        )


def _call(op: str, comm: str, line: int) -> Act:
    return Act(
        op,
        comm,
        shape=() if op == "barrier" else (12, 4),
        redop="sum" if op == "all_reduce" else None,
        root=0 if op == "broadcast" else None,
        line=line,
        waits=op == "barrier",
    )


def _word(program: Sequence[Act]) -> str:
    return "".join(map(_symbol, program))


def _symbol(act: Act) -> str:
    if not act.is_call:
        return f"!{act.op}"
    number, other = divmod(act.line % 100, 10)
    usual = PAIR if act.line > 100 else WORLD
    letter = "ABCDEFGHI"[number - 1]
    sizes = {6: "<", 18: ">"}
    size = sizes.get(act.shape[0], "") if act.shape else ""
    letter = letter if usual == WORLD else letter.lower()
    return letter + "'" * other + size + "^" * (act.comm != usual)


def settings() -> Iterator[Setting]:
    """Yield the settings, small ones first."""
    for size, alike in itertools.product((2, 3), (True, False)):
        yield Setting(size, "nccl", alike)
        yield Setting(size, "gloo", alike)


def bases(setting: Setting, most: int) -> Iterator[tuple[Act, ...]]:
    """Yield the programs of a healthy job up to a length, each once but for the names of calls."""
    for length in range(1, most + 1):
        for kinds in itertools.product((WORLD, PAIR), repeat=length):
            yield from _named(setting, kinds, ())


def _named(
    setting: Setting, comms: Sequence[str], made: tuple[tuple[str, int], ...]
) -> Iterator[tuple[Act, ...]]:
    if len(made) == len(comms):
        yield tuple(setting.letter(comm, number) for comm, number in made)
        return
    comm = comms[len(made)]
    for number in range(1 + max((n for label, n in made if label == comm), default=-1) + 1):
        yield from _named(setting, comms, (*made, (comm, number)))


@dataclass(frozen=True)
class Job:
    """A base program and its fault.

    Attributes:
        setting: What holds for all ranks.
        base: The calls of the healthy job in their order.
        fault: Name of the fault; ``healthy`` for none.
        rank: The rank that has it; -1 for none.
        place: Acts that the rank begins before the fault.
        programs: What each rank does.
        absent: Ranks that never start.
    """

    setting: Setting
    base: tuple[Act, ...]
    fault: str
    rank: int
    place: int
    programs: tuple[tuple[Act, ...], ...]
    absent: tuple[int, ...] = ()

    @property
    def world(self) -> World:
        """The same as the executor takes it."""
        return self.setting.world(self.programs, self.absent)

    @property
    def name(self) -> str:
        """A name that is unique: the healthy program, and what the faulty rank does instead.

        Capital letters are calls on the world, others calls on the pair. ``'`` is another op,
        ``<`` and ``>`` a smaller and a larger size, ``^`` the other communicator.
        """
        setting = self.setting
        start = f"{setting.backend}{setting.size}{'=' if setting.alike else ''}:{_word(self.base)}"
        if self.rank < 0:
            return start
        if self.absent:
            return f"{start}:{self.rank}:never"
        return f"{start}:{self.rank}:{_word(self.programs[self.rank])}"


def healthy(setting: Setting, base: Sequence[Act]) -> tuple[tuple[Act, ...], ...]:
    """Return the program of each rank of a healthy job."""
    return tuple(
        tuple(act for act in base if rank in setting.comms[act.comm])
        for rank in range(setting.size)
    )


def jobs(setting: Setting, most: int) -> Iterator[Job]:
    """Yield all jobs whose base program has up to `most` calls."""
    for base in bases(setting, most):
        usual = healthy(setting, base)
        yield Job(setting, base, "healthy", -1, 0, usual)
        for rank, program in enumerate(usual):
            own = [label for label, members in setting.comms.items() if rank in members]
            made = dict.fromkeys(base)
            new = [setting.letter(label, sum(act.comm == label for act in made)) for label in own]
            letters = [act for act in (*made, *new) if act.comm in own]
            for fault, place, changed in (
                *edits(program, letters, partial(_others, own)),
                *ends(program),
            ):
                absent = (rank,) if fault == "never_starts" else ()
                programs = (*usual[:rank], changed, *usual[rank + 1 :])
                yield Job(setting, base, fault, rank, place, programs, absent)


def _others(own: Sequence[str], act: Act) -> Iterator[Act]:
    """Yield the calls with one other parameter that a rank may make instead of one."""
    op = "all_reduce" if act.op != "all_reduce" else "all_gather"
    yield _call(op, act.comm, act.line + 1)
    if act.shape:
        for rows in (6, 18):
            yield replace(act, shape=(rows, *act.shape[1:]))
    for label in own:
        if label != act.comm:
            yield replace(act, comm=label)


def fault_of(one: Act, two: Act) -> str:
    """Return the fault of a rank that makes a call instead of another; empty if it is none."""
    if one.comm != two.comm:
        return "other_comm" if replace(one, comm=two.comm) == two else ""
    if one.op != two.op:
        return "other_op"
    return "other_size" if one.shape != two.shape else ""


_Edit = tuple[str, int, tuple[Act, ...]]


def edits(
    program: tuple[Act, ...], letters: Sequence[Act], others: Callable[[Act], Iterable[Act]]
) -> Iterator[_Edit]:
    """Yield fault, place and program of a rank that makes other calls than it should.

    Args:
        program: Its healthy program.
        letters: Calls that it may make besides.
        others: Returns the calls that it may make instead of one.
    """
    for place, act in enumerate(program):
        before, after = program[:place], program[place + 1 :]
        if after[:1] != (act,):  # else the next place is the same
            yield "left_out", place, (*before, *after)
        for other in others(act):
            fault = fault_of(act, other)
            if fault:
                yield fault, place, (*before, other, *after)
        if after and after[0] != act:
            yield "swapped", place, (*before, after[0], act, *after[1:])
    for place in range(len(program) + 1):
        for act in letters:
            if program[place : place + 1] != (act,):
                yield "extra", place, (*program[:place], act, *program[place:])


def ends(program: tuple[Act, ...], *, last: bool = False) -> Iterator[_Edit]:
    """Yield fault, place and program of a rank that goes no further.

    Args:
        program: Its healthy program.
        last: Whether it may do so after its last call, too.
    """
    yield "never_starts", 0, ()
    for place in range(len(program) + last):
        for fault in ("kill", "raise", "outside"):
            yield fault, place, (*program[:place], Act(fault))
        yield "exit", place, program[:place]


# --- records --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Records:
    """What is recorded of a job; nothing distinguishes two jobs with the same ones.

    Attributes:
        setting: What holds for all ranks.
        calls: Calls of each rank, and whether each is known to have completed; None without a ring.
        ends: How each rank is seen to have ended; empty for one that has not.
        final: Whether they were taken long after the last event.
    """

    setting: Setting
    calls: tuple[tuple[tuple[Act, bool], ...] | None, ...]
    ends: tuple[str, ...]
    final: bool

    @property
    def mirrored(self) -> Records:
        """The same with ranks 0 and 1 exchanged."""
        order = [1, 0, 2][: self.setting.size]
        return replace(
            self,
            calls=tuple(self.calls[rank] for rank in order),
            ends=tuple(self.ends[rank] for rank in order),
        )


def records_of(setting: Setting, world: World, outcome: Outcome) -> Records:
    """Return what is recorded of a job that has come so far."""
    ended: list[str] = []
    for rank in range(world.size):
        how = outcome.ended.get(rank, "")
        # Right after the last event nobody misses a heartbeat.
        ended.append("" if how == "kill" and not outcome.final else how)
    return Records(
        setting,
        tuple(
            None
            if rank in world.absent
            else tuple(
                (each.act, bool(each.done_ns) and (world.backend == "gloo" or each.act.waits))
                for each in posted
            )
            for rank, posted in enumerate(outcome.posted)
        ),
        tuple(ended),
        outcome.final,
    )


def finish(world: World) -> Outcome:
    """Carry a job out until nothing moves."""
    execution = Execution(world)
    while ready := execution.ready():
        execution.step(ready[0])
    return execution.outcome(final=True)


def at(world: World, acts: Sequence[int]) -> Outcome:
    """Carry a job out until each rank has begun a number of acts; its end counts as one."""
    execution = Execution(world)
    left = list(acts)
    while ready := [each for each in execution.ready() if left[each[0]]]:
        execution.step(ready[0])
        left[ready[0][0]] -= 1
    return execution.outcome(final=False)


def moments(world: World) -> Iterator[tuple[int, ...]]:
    """Yield the acts of each rank, as :func:`at` takes them, in all states that a job comes to."""
    paths: dict[tuple[int, ...], tuple[int, ...]] = {(0,) * world.size: ()}
    waiting = list(paths)
    while waiting:
        acts = waiting.pop()
        yield acts
        execution = Execution(world)
        for rank in paths[acts]:
            execution.step((rank, 0))
        for rank, _ in execution.ready():
            further = (*acts[:rank], acts[rank] + 1, *acts[rank + 1 :])
            if further not in paths:
                paths[further] = (*paths[acts], rank)
                waiting.append(further)


def reach(world: World, records: Records) -> Outcome | None:
    """Carry a job out up to what is recorded; None where it comes there in no order."""
    if records.final:
        outcome = finish(world)
    else:
        execution = Execution(world)
        while True:
            outcome = execution.outcome(final=False)
            ready = [each for each in execution.ready() if _behind(outcome, records, each[0])]
            if not ready:
                break
            execution.step(ready[0])
    return outcome if records_of(records.setting, world, outcome) == records else None


def _behind(outcome: Outcome, records: Records, rank: int) -> bool:
    calls = records.calls[rank]
    if calls is None:
        return False
    if len(outcome.posted[rank]) < len(calls):
        return True
    return bool(records.ends[rank]) and rank not in outcome.ended
