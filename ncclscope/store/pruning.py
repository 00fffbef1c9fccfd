"""Choose which entries of the default places go: on request, or to keep within the limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ncclscope.errors import os_reason
from ncclscope.settings import variable
from ncclscope.store.entry import Entry, State, entries
from ncclscope.store.home import remove_empty_homes
from ncclscope.store.removal import remove

_LIMIT_MB = 1024
_SHARE = 4
"""Without a limit of the user's, entries may take 1/SHARE of a file system at most."""


@dataclass(frozen=True)
class Outcome:
    """What became of an entry.

    Attributes:
        entry: The entry.
        state: Its state.
        removed: Whether it was removed, or would be.
        why: Why it was kept; empty if it was removed.
    """

    entry: Entry
    state: State
    removed: bool
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "path": str(self.entry.path),
            "kind": "bundle" if self.entry.is_bundle else "rings",
            "state": self.state.value,
            "bytes": self.entry.size,
            "changed": self.entry.changed,
            "removed": self.removed,
            "why": self.why,
        }


def prune(older: float = 0.0, *, alarms: bool = False, dry_run: bool = False) -> list[Outcome]:
    """Remove the rings and bundles that are neither in use nor an alarm that nobody has read.

    Args:
        older: Seconds since the last change below which an entry is kept.
        alarms: Whether alarms that nobody has read go as well.
        dry_run: Whether to remove nothing.

    Returns:
        The outcome for each entry, oldest first.
    """
    now = time.time()
    outcomes = [
        _outcome(entry, now - entry.changed < older, alarms=alarms, dry_run=dry_run)
        for entry in entries()
    ]
    remove_empty_homes()
    return outcomes


def _outcome(entry: Entry, is_young: bool, *, alarms: bool, dry_run: bool) -> Outcome:
    state = entry.state()
    if state is State.IN_USE or (state is State.ALARM and not alarms):
        return Outcome(entry, state, False, state.value)
    if is_young:
        return Outcome(entry, state, False, "not old enough")
    try:
        if not dry_run:
            remove(entry)
    except OSError as error:
        return Outcome(entry, state, False, os_reason(error))
    return Outcome(entry, state, True)


def keep_within_limit(say: Callable[[str], None]) -> None:
    """Remove entries of a default place that holds too much: healthy ones, then alarms read.

    Args:
        say: Receives a sentence about each place that still holds too much.
    """
    found = entries()
    for base in {entry.base: None for entry in found}:
        own = [entry for entry in found if entry.base == base]
        excess = sum(entry.size for entry in own) - _limit(str(base), say)
        if excess <= 0:
            continue
        for entry in _removable(own):
            if not _outcome(entry, False, alarms=False, dry_run=False).removed:
                continue
            excess -= entry.size
            if excess <= 0:
                break
        else:
            say(
                f"{base} holds {excess >> 20} MB of rings and bundles more than NCCLSCOPE_STORE_MB "
                f"allows; nobody has read them: ncclscope prune --alarms --older 7d"
            )


def _removable(found: list[Entry]) -> Iterator[Entry]:
    """Yield entries in the order in which they go; the state of each is examined when needed."""
    read = []
    for entry in found:
        state = entry.state()
        if state is State.HEALTHY:
            yield entry
        elif state is State.READ:
            read.append(entry)
    yield from read


def _limit(base: str, say: Callable[[str], None]) -> int:
    """Return how many bytes the entries of a default place may take."""
    given = variable("STORE_MB")
    if given.isdecimal():
        return int(given[:12]) << 20
    if given:
        say(f"NCCLSCOPE_STORE_MB={given!r} is not a number of MB; using the default")
    try:
        system = os.statvfs(base)
    except OSError:
        return _LIMIT_MB << 20
    return min(_LIMIT_MB << 20, system.f_blocks * system.f_frsize // _SHARE)
