"""The grammar of faults: each changes what one rank of a healthy world does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tests.worlds.world import COLLECTIVES, Act, World

__all__ = ["FAULTS", "MISMATCHES", "Planted", "plant"]

CERTAIN, LIKELY = "certain", "likely"
MISMATCHES = ("op", "size", "dtype", "redop", "root", "split")


@dataclass(frozen=True)
class Planted:
    """A fault that was planted.

    Attributes:
        fault: Its name in :data:`FAULTS`.
        rank: The rank that has it.
        at: Acts of its own program that the rank begins before the fault.
        kinds: Kinds of verdicts that describe it, with the highest confidence allowed for each.
        comms: Communicators on which it may be reported; empty for any and for none.
        edit: How the rank's calls differ from those of a healthy one: ``deleted``, ``inserted``,
            ``replaced`` or nothing.
        count: Number of acts that are deleted or inserted.
        peers: Ranks to which the same records may be put down.
        line: Line of the program.
        threads: The threads that have it.
    """

    fault: str
    rank: int
    at: int
    kinds: Mapping[str, str]
    comms: tuple[str, ...] = ()
    edit: str = ""
    count: int = 1
    peers: tuple[int, ...] = ()
    line: int = 0
    threads: frozenset[int] = frozenset({0})


def plant(world: World, rng: random.Random, fault: str, rank: int) -> Planted | None:
    """Change a world so that a rank has a fault.

    Returns:
        The fault; None where the rank's program has no place for it.
    """
    program = world.programs[rank]
    before = list(program)
    planted = FAULTS[fault](world, rng, rank, program)
    if planted is None:
        return None
    longer = max(program, before, key=len)
    threads = {act.thread for act in longer[planted.at : planted.at + planted.count]}
    if planted.at < 0 or not threads:
        threads = {0}
    return replace(planted, fault=fault, threads=frozenset(threads))


def _certain(*kinds: str, likely: tuple[str, ...] = ()) -> Mapping[str, str]:
    return {**dict.fromkeys(likely, LIKELY), **dict.fromkeys(kinds, CERTAIN)}


def _peers(world: World, act: Act) -> tuple[int, ...]:
    """Return the other side of a transfer."""
    return (world.comms[act.comm][act.peer or 0],) if act.is_p2p else ()


def _any_call(rng: random.Random, program: list[Act], wanted: Callable[[Act], bool]) -> int | None:
    places = [place for place, act in enumerate(program) if act.is_call and wanted(act)]
    return rng.choice(places) if places else None


def _collective(act: Act) -> bool:
    return act.op in COLLECTIVES


# --- rounds -----------------------------------------------------------------------------------


def _round(rng: random.Random, program: list[Act]) -> tuple[int, int] | None:
    """Return where a round begins and ends."""
    rounds = sorted({act.round for act in program if act.round >= 0})
    if not rounds:
        return None
    number = rng.choice(rounds)
    places = [place for place, act in enumerate(program) if act.round == number]
    return places[0], places[-1] + 1


def _of_round(world: World, acts: list[Act]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    comms = tuple(dict.fromkeys(act.comm for act in acts))
    peers = tuple({rank for act in acts for rank in _peers(world, act)})
    return comms, peers


def _skipped_round(
    world: World, rng: random.Random, rank: int, program: list[Act]
) -> Planted | None:
    found = _round(rng, program)
    if found is None:
        return None
    begin, end = found
    gone = program[begin:end]
    comms, peers = _of_round(world, gone)
    kinds = _certain("missing_call", *_transferred(gone))
    del program[begin:end]
    return Planted("", rank, begin, kinds, comms, "deleted", len(gone), peers, line=gone[0].line)


def _extra_round(world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    found = _round(rng, program)
    if found is None:
        return None
    begin, end = found
    more = [replace(act, batch=act.batch and act.batch + 500) for act in program[begin:end]]
    comms, peers = _of_round(world, more)
    kinds = _certain("extra_call", *_transferred(more))
    program[end:end] = more
    return Planted("", rank, end, kinds, comms, "inserted", len(more), peers, line=more[0].line)


def _transferred(acts: list[Act]) -> tuple[str, ...]:
    return ("p2p_mismatch",) if any(act.is_p2p for act in acts) else ()


# --- single calls -----------------------------------------------------------------------------


def _skipped_call(
    world: World, rng: random.Random, rank: int, program: list[Act]
) -> Planted | None:
    place = _any_call(rng, program, lambda _act: True)
    if place is None:
        return None
    act = program.pop(place)
    kinds = _certain("missing_call", *_transferred([act]))
    return Planted("", rank, place, kinds, (act.comm,), "deleted", 1, _peers(world, act), act.line)


def _extra_call(world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    place = _any_call(rng, program, lambda act: not act.batch)
    if place is None:
        return None
    act = program[place]
    if rng.random() < 0.5:  # the same call twice, or one of another line
        act = replace(act, line=act.line + 1)
    program.insert(place + 1, act)
    kinds = _certain("extra_call", *_transferred([act]))
    return Planted(
        "", rank, place + 1, kinds, (act.comm,), "inserted", 1, _peers(world, act), act.line
    )


def _replaced(
    world: World, rank: int, program: list[Act], place: int, act: Act, *kinds: str
) -> Planted:
    program[place] = act
    names = _certain(*(("p2p_mismatch", *kinds) if act.is_p2p else kinds))
    return Planted("", rank, place, names, (act.comm,), "replaced", 1, _peers(world, act), act.line)


def _other_op(world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    place = _any_call(rng, program, lambda act: _collective(act) and act.op != "barrier")
    if place is None:
        return None
    act = program[place]
    op = rng.choice([op for op in ("all_reduce", "all_gather", "barrier") if op != act.op])
    other = replace(
        act,
        op=op,
        redop="sum" if op == "all_reduce" else None,
        root=None,
        shape=() if op == "barrier" else act.shape,
        line=act.line + 1,
    )
    return _replaced(world, rank, program, place, other, "op_mismatch")


def _has_size(backend: str, act: Act) -> bool:
    # Who fails in gloo's all_to_all with other sizes depends on which data comes first.
    return bool(act.shape) and (backend == "nccl" or act.op != "all_to_all")


def _other_size(world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    place = _any_call(rng, program, partial(_has_size, world.backend))
    if place is None:
        return None
    act = program[place]
    rows = act.shape[0] + len(world.comms[act.comm]) * rng.randint(1, 3)
    other = replace(act, shape=(rows, *act.shape[1:]))
    return _replaced(world, rank, program, place, other, "size_mismatch", "split_mismatch")


def _other_dtype(world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    place = _any_call(rng, program, partial(_has_size, world.backend))
    if place is None:
        return None
    act = program[place]
    dtype = "float16" if act.dtype != "bfloat16" else "float32"
    return _replaced(world, rank, program, place, replace(act, dtype=dtype), "dtype_mismatch")


def _other_root(world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    place = _any_call(rng, program, lambda act: act.root is not None)
    if place is None:
        return None
    act = program[place]
    root = ((act.root or 0) + 1) % len(world.comms[act.comm])
    return _replaced(world, rank, program, place, replace(act, root=root), "root_mismatch")


def _other_redop(world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    place = _any_call(rng, program, lambda act: act.redop is not None)
    if place is None:
        return None
    act = program[place]
    redop = "max" if act.redop == "sum" else "sum"
    return _replaced(world, rank, program, place, replace(act, redop=redop), "redop_mismatch")


def _other_comm(world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    own = [label for label, members in world.comms.items() if rank in members]
    place = _any_call(rng, program, lambda act: _collective(act) and act.root is None)
    if place is None or len(own) < 2:
        return None
    act = program[place]
    label = rng.choice([each for each in own if each != act.comm])
    program[place] = replace(act, comm=label)
    kinds = _certain(
        "comm_swap",
        likely=(
            "missing_call",
            "extra_call",
            "not_joined",
            *(f"{name}_mismatch" for name in MISMATCHES),
        ),
    )
    return Planted("", rank, place, kinds, (act.comm, label), "", line=act.line)


def _swapped(
    world: World, rng: random.Random, rank: int, program: list[Act], *, same: bool
) -> Planted | None:
    """Exchange two successive collectives, of one communicator or of two."""
    places = [
        place
        for place, (one, two) in enumerate(itertools.pairwise(program))
        if _collective(one)
        and _collective(two)
        and one.thread == two.thread
        and (one.comm == two.comm) == same
        and (not same or one.signature != two.signature)
    ]
    if not places:
        return None
    place = rng.choice(places)
    one, two = program[place : place + 2]
    program[place : place + 2] = [two, one]
    if same:
        kinds = _certain(
            *(f"{name}_mismatch" for name in MISMATCHES), likely=("missing_call", "extra_call")
        )
        return Planted("", rank, place, kinds, (one.comm,), "swapped", 2, line=two.line)
    both = set(world.comms[one.comm]) & set(world.comms[two.comm]) - {rank}
    kinds = _certain("order_cycle", likely=("comm_swap", "not_joined"))
    peers = tuple(both) if len(both) == 1 else ()
    return Planted("", rank, place, kinds, (one.comm, two.comm), "", peers=peers, line=two.line)


def _swapped_calls(
    world: World, rng: random.Random, rank: int, program: list[Act]
) -> Planted | None:
    return _swapped(world, rng, rank, program, same=True)


def _swapped_comms(
    world: World, rng: random.Random, rank: int, program: list[Act]
) -> Planted | None:
    return _swapped(world, rng, rank, program, same=False)


# --- processes --------------------------------------------------------------------------------

_GONE = _certain("dead_rank", "not_joined", "missing_call")


def _held(op: str, kinds: Mapping[str, str]) -> _Fault:
    def plant_it(
        _world: World, rng: random.Random, rank: int, program: list[Act]
    ) -> Planted | None:
        place = rng.randrange(1, len(program) + 1) if program else 0
        if place and place < len(program) and program[place].batch:
            return None
        # An error ends a process in its main thread alone.
        thread = program[place - 1].thread if place and op != "raise" else 0
        program.insert(place, Act(op, thread=thread))
        return Planted("", rank, place, kinds)

    return plant_it


def _early_exit(_world: World, rng: random.Random, rank: int, program: list[Act]) -> Planted | None:
    place = rng.randrange(len(program)) if program else 0
    if not program or program[place].batch:
        return None
    del program[place:]
    return Planted("", rank, place, _GONE)


def _never_starts(
    world: World, _rng: random.Random, rank: int, program: list[Act]
) -> Planted | None:
    if len(world.absent) + 1 == world.size:
        return None  # of whom nobody starts, there is nothing to diagnose
    world.absent = (*world.absent, rank)
    program.clear()
    return Planted("", rank, -1, _certain("dead_rank", "not_joined", "init_stalled"))


_Fault = Callable[[World, random.Random, int, list[Act]], Planted | None]

FAULTS: Mapping[str, _Fault] = {
    "skipped_round": _skipped_round,
    "extra_round": _extra_round,
    "skipped_call": _skipped_call,
    "extra_call": _extra_call,
    "other_op": _other_op,
    "other_size": _other_size,
    "other_dtype": _other_dtype,
    "other_root": _other_root,
    "other_redop": _other_redop,
    "other_comm": _other_comm,
    "swapped_calls": _swapped_calls,
    "swapped_comms": _swapped_comms,
    "raises": _held("raise", _certain("dead_rank")),
    "killed": _held("kill", _certain("dead_rank")),
    "stopped": _held("stop", _certain("dead_rank", "not_joined")),
    "outside": _held("outside", _certain("not_joined")),
    "busy": _held("busy", {"late": LIKELY}),
    "early_exit": _early_exit,
    "never_starts": _never_starts,
}
