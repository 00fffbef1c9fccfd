"""Settings of the rendezvous that ranks must have in common: the store's address, the world size.

Ranks with another address or size wait forever, although all have come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ncclscope.engine.waits.noted import Noted, given_up, lasting
from ncclscope.model import Fact, Rank
from ncclscope.model.activities import INIT, STORE_PLACE
from ncclscope.untrusted import printable
from ncclscope.wording.names import ranks_text


@dataclass(frozen=True)
class Disagreement:
    """A setting that differs between ranks.

    Attributes:
        few: The ranks with the rarest value; all ranks if two values are equally rare.
        text: Who has which value: ``rank 2 has world size 5, ranks 0-1 have 4``.
        is_tie: Whether two values are equally rare, so that no rank is singled out.
    """

    few: tuple[int, ...]
    text: Fact
    is_tie: bool


def disagreements(ranks: Sequence[Rank]) -> Iterator[Disagreement]:
    """Yield the settings that differ among ranks some of which are in ``init_process_group``."""
    if not any(_inside(rank) for rank in ranks):
        return
    places = {rank.rank: place for rank in ranks if (place := _place(rank))}
    # A host has several names, a port is the same for all.
    yield from _compare("the store's address", places, lambda place: place.rpartition(":")[2])
    yield from world_sizes(ranks)


def world_sizes(ranks: Sequence[Rank]) -> Iterator[Disagreement]:
    """Yield who has which world size, if they differ."""
    sizes = {rank.rank: str(rank.world_size) for rank in ranks if rank.world_size}
    yield from _compare("world size", sizes, str)


def _compare(
    name: str, values: Mapping[int, str], same: Callable[[str], str]
) -> Iterator[Disagreement]:
    groups: dict[str, list[int]] = {}
    for number, value in values.items():
        groups.setdefault(same(value), []).append(number)
    if len(groups) < 2:
        return
    rarest, *others = sorted(groups.values(), key=len)
    clauses = [
        f"{ranks_text(group)} {'has' if len(group) == 1 else 'have'} "
        f"{f'{name} ' if place == 0 else ''}{values[group[0]]}"
        for place, group in enumerate((rarest, *others))
    ]
    is_tie = len(rarest) == len(others[0])
    few = tuple(sorted(values)) if is_tie else tuple(rarest)
    alone = [group[0] for group in (rarest, *others) if len(group) == 1]
    subject = rarest[0] if len(rarest) == 1 else None
    yield Disagreement(few, Fact(", ".join(clauses), subject, alone), is_tie)


def _inside(rank: Rank) -> Noted | None:
    return lasting(rank, INIT) or given_up(rank, INIT)


def _place(rank: Rank) -> str:
    """Return the address of the store at which a rank meets its peers; empty if unknown."""
    inside, place = _inside(rank), rank.activities.get(STORE_PLACE)
    if inside is None or place is None or place.since_ns < inside.activity.since_ns:
        return ""
    return printable(place.detail or "")
