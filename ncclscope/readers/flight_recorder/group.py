"""Read the process groups that a Flight Recorder dump describes next to its entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ncclscope.model import State
from ncclscope.readers.budget import Budget
from ncclscope.readers.flight_recorder.entry import Entry
from ncclscope.untrusted import MAX_RANKS, integer, integers, parse, text

MAX_SEQ = 1 << 62
_LONGEST_RANKS = 1 << 23
"""Longest list of ranks, in characters: enough for the largest job."""
_MOST_MEMBERS = 4 * MAX_RANKS
"""Most members of all groups of a dump together."""


class Group(NamedTuple):
    """A process group as one dump describes it."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    backend: str


@dataclass
class Held:
    """Calls and status of one group in a dump.

    Attributes:
        calls: Collectives, with consecutive sequence numbers.
        sent: Sends and receives.
        reached: Minimum number of collectives made, from the numbers of sends and receives.
        enqueued: Calls made according to the group's status; None if it has no status, or if
            the status counts sends and receives.
    """

    calls: list[Entry] = field(default_factory=list)
    sent: list[Entry] = field(default_factory=list)
    reached: int = 0
    enqueued: int | None = None


def group_of_entry(where: Any, backend: str, members: Mapping[str, Group]) -> Group:
    """Return the group that an entry names.

    Args:
        where: The entry's ``process_group``: name and description.
        backend: Backend of the entry.
        members: Described groups by name.
    """
    parts = where[:2] if isinstance(where, list | tuple) else [where]
    name, desc = [*(text(part) or "" for part in parts), "", ""][:2]
    known = members.get(name)
    return Group(name, desc, known.ranks if known else (), backend)


def members_of(config: Any, budget: Budget) -> dict[str, Group]:
    """Return the described groups by name, without those that name no members.

    Raises:
        DamagedFileError: The budget is spent, or the groups have implausibly many members.
    """
    found: dict[str, Group] = {}
    members = 0
    for name, about in config.items() if isinstance(config, dict) else ():
        if not isinstance(name, str) or not isinstance(about, dict):
            continue
        ranks = about.get("ranks")
        if isinstance(ranks, str):
            try:
                budget.check()
                ranks = parse(ranks[:_LONGEST_RANKS])
            except ValueError:
                continue
        numbers = integers(ranks, MAX_RANKS)
        if numbers and all(0 <= number < MAX_RANKS for number in numbers):
            members += len(numbers)
            if members > _MOST_MEMBERS:
                raise budget.too_large(f"{len(found)} groups with {members} members")
            found[name] = Group(name, text(about.get("desc")) or "", numbers, "")
    return found


def add_status(
    groups: dict[Group, Held],
    members: Mapping[str, Group],
    numbers: dict[str, str],
    value: Mapping[str, Any],
) -> None:
    """Add the number of calls on groups without kept entries.

    A status has the number of its group, and a description has the group's name. Both increase in
    the order in which groups were created. So they are paired if there are equally many.

    Args:
        groups: Groups with their calls; updated.
        members: Described groups by name.
        numbers: Name of each group that an entry names, by its number.
        value: The dump.
    """
    status = value.get("pg_status")
    if not isinstance(status, dict):
        return
    ids = {
        (text(key) or "?")[:20]: about for key, about in status.items() if isinstance(about, dict)
    }
    names = dict(numbers)
    if len(ids) == len(members) and all(
        name.isdecimal() and len(name) < 20 for name in (*ids, *members)
    ):
        paired = dict(zip(sorted(ids, key=int), sorted(members, key=int), strict=True))
        if all(paired.get(number) == name for number, name in numbers.items()):
            names = paired
    library = value.get("comm_lib_version") or value.get("nccl_version")
    backend = next((group.backend for group in groups), "nccl" if library else "")
    held_by = {group.name: held for group, held in groups.items()}
    for own, about in ids.items():
        name = names.get(own)
        made = _count(about.get("last_enqueued_collective"))
        if name is None or made is None:
            continue
        held = held_by.get(name)
        if held is None and name in members:
            group = members[name]._replace(backend=backend)
            held = groups.setdefault(group, Held())
        if held is not None:
            held.enqueued = made


def tells(groups: Mapping[Group, Held], value: Mapping[str, Any]) -> bool:
    """Return whether a dump reports completion, by states or by leaving completed calls out."""
    status = value.get("pg_status")
    if isinstance(status, dict) and any(
        isinstance(about, dict) and _count(about.get("last_completed_collective"))
        for about in status.values()
    ):
        return True
    return any(
        entry.retired or entry.state is not State.SCHEDULED
        for held in groups.values()
        for entry in held.calls
    )


def _count(value: Any) -> int | None:
    """Return a count, which JSON dumps write as a text; None if it is negative."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    found = integer(value)
    return found if found is not None and 0 <= found < MAX_SEQ else None
