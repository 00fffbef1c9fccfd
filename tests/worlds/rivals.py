"""Enumerate all jobs with one fault that leave the same records as a small job did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.worlds.small import Job, Records, edits, ends, healthy, reach
from tests.worlds.world import Act

__all__ = ["Explanation", "explanations"]


@dataclass(frozen=True)
class Explanation:
    """A fault that accounts for all that is recorded.

    Attributes:
        fault: Its name; ``healthy`` for none.
        rank: The rank that has it; -1 for none.
        place: Acts that the rank begins before the fault.
    """

    fault: str
    rank: int
    place: int


def explanations(records: Records) -> Iterator[Explanation]:
    """Yield the jobs with one fault that leave these records, or a healthy one that does."""
    setting = records.setting
    words = [None if calls is None else tuple(act for act, _ in calls) for calls in records.calls]
    letters = tuple(dict.fromkeys(act for word in words if word for act in word))
    absent = [rank for rank, word in enumerate(words) if word is None]
    if absent and not records.final:
        yield Explanation("healthy", -1, 0)  # it may start yet
        return
    for rank in absent or (-1, *range(setting.size)):
        own = words[rank] if rank >= 0 else ()
        for base in _bases(records, words, letters, rank):
            usual = healthy(setting, base)
            if rank < 0:
                changes = [("healthy", 0, usual[0])]
            elif own is None:
                changes = [("never_starts", 0, ())]
            else:
                mine = tuple(dict.fromkeys(own))
                changes = [
                    change
                    for change in (
                        *edits(usual[rank], mine, lambda _act, mine=mine: mine),
                        *ends(usual[rank], last=True),
                    )
                    if change[0] != "never_starts" and _begins_with(change[2], own)
                ]
            for fault, place, program in changes:
                programs = usual if rank < 0 else (*usual[:rank], program, *usual[rank + 1 :])
                job = Job(setting, base, fault, rank, place, programs, tuple(absent))
                if reach(job.world, records):
                    yield Explanation(fault, rank, place)
                    if rank < 0:
                        return  # no fault is cheaper than one


def _begins_with(program: Sequence[Act], word: Sequence[Act]) -> bool:
    calls = tuple(act for act in program if act.is_call)
    return calls[: len(word)] == tuple(word)


def _bases(
    records: Records,
    words: Sequence[tuple[Act, ...] | None],
    letters: Sequence[Act],
    faulty: int,
) -> Iterator[tuple[Act, ...]]:
    """Yield the base programs that the records of all other ranks follow."""
    comms = records.setting.comms
    most = 1 + max(len(word) for word in words if word is not None)
    others = [rank for rank in range(len(words)) if rank != faulty]

    def extend(base: tuple[Act, ...]) -> Iterator[tuple[Act, ...]]:
        usual = healthy(records.setting, base)
        if all(len(usual[rank]) >= len(words[rank] or ()) for rank in others):
            yield base
        if len(base) == most:
            return
        for act in letters:
            for rank in others:
                if rank not in comms[act.comm]:
                    continue
                word, place = words[rank] or (), len(usual[rank])
                if place < len(word) and word[place] != act:
                    break
                if place >= len(word) and records.ends[rank] == "exit":
                    break
            else:
                if faulty < 0 or _near((*usual[faulty], act), words[faulty], act, comms, faulty):
                    yield from extend((*base, act))

    seen = set()
    for base in extend(()):
        usual = healthy(records.setting, base)
        if usual not in seen:
            seen.add(usual)
            yield base


def _near(
    program: tuple[Act, ...],
    word: tuple[Act, ...] | None,
    act: Act,
    comms: dict[str, tuple[int, ...]],
    rank: int,
) -> bool:
    """Return whether one edit of the beginning of a program leads to the calls of a rank."""
    if word is None or rank not in comms[act.comm]:
        return True
    place = next((k for k, (a, b) in enumerate(zip(program, word, strict=False)) if a != b), None)
    if place is None:
        return True
    mine, made = program[place:], word[place:]

    def agree(one: tuple[Act, ...], two: tuple[Act, ...]) -> bool:
        return all(a == b for a, b in zip(one, two, strict=False))

    swapped = mine[:2] == made[:2][::-1] or (len(mine) == 1 and made[1:2] in ((), mine))
    return (
        agree(mine[1:], made)
        or agree(mine, made[1:])
        or agree(mine[1:], made[1:])
        or (swapped and agree(mine[2:], made[2:]))
    )
