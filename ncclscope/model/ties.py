"""Group things by what they share, such as processes by their communicators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TypeVar

_Thing = TypeVar("_Thing")
_Key = TypeVar("_Key", bound=Hashable)


def grouped(things: Iterable[_Thing], key: Callable[[_Thing], _Key]) -> dict[_Key, list[_Thing]]:
    """Return the things of each key, in their order; the key of the first thing comes first."""
    found: dict[_Key, list[_Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found


def tied(
    things: Sequence[_Thing], ties: Callable[[_Thing], Collection[Hashable]]
) -> list[list[_Thing]]:
    """Group things that share a tie, directly or through others.

    Args:
        things: The things.
        ties: Return the ties of a thing.

    Returns:
        The groups, in the order of their first things; each in the order of the things.
    """
    group_of: dict[Hashable, int] = {}
    groups: dict[int, list[int]] = {}
    known = [ties(thing) for thing in things]
    for place, own in enumerate(known):
        joined = {group_of[tie] for tie in own if tie in group_of}
        target = min(joined, default=place)
        members = groups.setdefault(target, [])
        members.append(place)
        group_of.update(dict.fromkeys(own, target))
        for other in joined - {target}:
            moved = groups.pop(other)
            members += moved
            for one in moved:
                group_of.update(dict.fromkeys(known[one], target))
    return [[things[place] for place in sorted(members)] for members in groups.values()]
