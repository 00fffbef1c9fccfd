"""Draw healthy jobs: communicators, and rounds of calls that all ranks repeat."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.worlds.world import Act, World

__all__ = ["draw"]

DTYPES = ("float32", "bfloat16", "float32", "int64")
REDUCING = ("all_reduce", "reduce_scatter")
FAMILY_OPS = ("all_reduce", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier")


def draw(rng: random.Random) -> World:
    """Return a healthy world, observed at its end and recorded as a whole."""
    return _Draft(rng).world()


@dataclass(frozen=True)
class _Slot:
    """A place in a round: what all ranks do there.

    Attributes:
        post: Returns what a rank does in a round.
        every: It is left out of all rounds but each n-th.
    """

    post: Callable[[int, int], list[Act]]
    every: int = 1


class _Draft:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._size = rng.choice((2, 3, 4, 4, 4, 5, 6, 8, 8))
        self._backend = rng.choice(("nccl", "gloo"))
        self._comms: dict[str, tuple[int, ...]] = {"world": tuple(range(self._size))}
        self._families: list[list[str]] = [["world"]]
        self._line = 10
        self._batches = 0
        self._grows = rng.random() < 0.25

    def world(self) -> World:
        rng = self._rng
        for family in rng.sample((self._grid, self._halves, self._pairs), rng.randrange(3)):
            family()
        streams = {}
        for number, family_labels in enumerate(self._families[1:], 1):
            if self._backend == "nccl" and rng.random() < 0.3:
                streams.update(dict.fromkeys(family_labels, number))
        start = [self._slot(first=True) for _ in range(rng.randrange(3))]
        slots = [self._slot() for _ in range(rng.randint(2, 6))]
        finish = [self._slot(first=True) for _ in range(rng.randrange(2))]
        rounds = rng.randint(3, 12)
        programs = []
        for rank in range(self._size):
            program = [act for slot in start for act in slot.post(rank, -1)]
            for number in range(rounds):
                for slot in slots:
                    if number % slot.every == 0:
                        program += [
                            replace(
                                act,
                                round=number,
                                batch=act.batch and act.batch * 1000 + number,
                            )
                            for act in slot.post(rank, number)
                        ]
            program += [act for slot in finish for act in slot.post(rank, -1)]
            programs.append(program)
        if len(self._families) > 1 and rng.random() < 0.25:
            self._move_to_thread(programs, streams)
        return World(self._size, self._backend, self._comms, programs, streams)

    def _move_to_thread(self, programs: list[list[Act]], streams: dict[str, int]) -> None:
        """Let a second thread make the calls on a family of communicators."""
        labels = self._rng.choice(self._families[1:])
        for program in programs:
            program[:] = [replace(act, thread=1) if act.comm in labels else act for act in program]
        if self._backend == "nccl":
            # On one stream, healthy threads could enqueue in different orders.
            streams.update(dict.fromkeys(labels, len(self._families)))

    # --- communicators ----------------------------------------------------------------------------

    def _family(self, name: str, groups: list[tuple[int, ...]]) -> None:
        labels = []
        for number, members in enumerate(groups):
            if len(members) > 1:
                label = f"{name}:{number}"
                self._comms[label] = members
                labels.append(label)
        if labels:
            self._families.append(labels)

    def _grid(self) -> None:
        sides = [side for side in range(2, self._size) if self._size % side == 0]
        if not sides:
            return
        width = self._rng.choice(sides)
        rows = self._size // width
        self._family("tp", [tuple(range(r * width, (r + 1) * width)) for r in range(rows)])
        self._family("dp", [tuple(range(c, self._size, width)) for c in range(width)])

    def _halves(self) -> None:
        if self._size >= 4:
            middle = self._size // 2
            self._family("node", [tuple(range(middle)), tuple(range(middle, self._size))])

    def _pairs(self) -> None:
        if self._size >= 4:
            self._family("pp", [(rank, rank + 1) for rank in range(0, self._size - 1, 2)])

    # --- what a round consists of -----------------------------------------------------------------

    def _slot(self, *, first: bool = False) -> _Slot:
        rng = self._rng
        self._line += rng.randint(1, 9)
        every = 1 if first or rng.random() < 0.85 else rng.randint(2, 4)
        kind = (
            "collective"
            if first
            else rng.choices(("collective", "ring", "pipeline", "exchange"), (12, 1, 1, 1))[0]
        )
        return _Slot(getattr(self, f"_{kind}")(), every)

    def _collective(self) -> Callable[[int, int], list[Act]]:
        rng = self._rng
        labels = rng.choice(self._families)
        size = len(self._comms[labels[0]])
        op = rng.choice(FAMILY_OPS if size > 1 else ("barrier",))
        if op == "broadcast" and rng.random() < 0.2:
            op = "all_to_all"
        act = Act(
            op,
            shape=() if op == "barrier" else (rng.randint(1, 6) * 8 * size, rng.choice((1, 2, 4))),
            dtype=rng.choice(DTYPES),
            redop=rng.choice(("sum", "sum", "max")) if op in REDUCING else None,
            root=rng.randrange(size) if op == "broadcast" else None,
            line=self._line,
            waits=op == "barrier" or rng.random() < 0.2,
        )
        grows = self._grows and op != "barrier" and rng.random() < 0.5

        def post(rank: int, number: int) -> list[Act]:
            label = next((each for each in labels if rank in self._comms[each]), None)
            if label is None:
                return []
            members = len(self._comms[label])
            shape = act.shape
            if shape:
                rows = shape[0] // size * members + (number * 8 * members if grows else 0)
                shape = (rows, shape[1])
            root = None if act.root is None else act.root % members
            return [replace(act, comm=label, shape=shape, root=root)]

        return post

    def _transfer(self, op: str, peer: int, batch: int = 0, line: int = 0) -> Act:
        return Act(op, "world", (16, 4), "float32", peer=peer, batch=batch, line=line)

    def _ring(self) -> Callable[[int, int], list[Act]]:
        """Send to the next rank and receive from the one before, together."""
        self._batches += 1
        batch, line, size = self._batches, self._line, self._size

        def post(rank: int, _number: int) -> list[Act]:
            return [
                self._transfer("send", (rank + 1) % size, batch, line),
                self._transfer("recv", (rank - 1) % size, batch, line + 1),
            ]

        return post

    def _pipeline(self) -> Callable[[int, int], list[Act]]:
        """Receive from the rank before and send to the next."""
        line, size = self._line, self._size

        def post(rank: int, _number: int) -> list[Act]:
            acts = []
            if rank:
                acts.append(self._transfer("recv", rank - 1, line=line))
            if rank + 1 < size:
                acts.append(self._transfer("send", rank + 1, line=line + 1))
            return acts

        return post

    def _exchange(self) -> Callable[[int, int], list[Act]]:
        """Send from even to odd ranks, and back."""
        line, size = self._line, self._size

        def post(rank: int, _number: int) -> list[Act]:
            if rank == size - 1 and size % 2:
                return []
            first, second = ("send", "recv") if rank % 2 == 0 else ("recv", "send")
            return [
                self._transfer(first, rank ^ 1, line=line),
                self._transfer(second, rank ^ 1, line=line + 1),
            ]

        return post
