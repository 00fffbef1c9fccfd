"""What may be said of a world: what was planted, and what explains the same records as cheaply.

The truth is generous. Where the records may not tell two stories, or two ranks, from each other,
both are admitted, though not with certainty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.worlds.executor import Outcome
from tests.worlds.faults import CERTAIN, LIKELY, MISMATCHES, Planted
from tests.worlds.world import P2P, Act, World

__all__ = ["Story", "Truth", "truth_of"]

_AT_ONCE_NS = 1_000_000_000


@dataclass(frozen=True)
class Story:
    """A fault as a verdict may describe it.

    Attributes:
        planted: The fault.
        kinds: Kinds that are right, with the highest confidence allowed for each.
        comms: Labels of communicators on which it may be reported; empty for any.
        seqs: Numbers of calls that are right, by label; any where a label has none.
    """

    planted: Planted
    kinds: Mapping[str, str]
    comms: tuple[str, ...]
    seqs: Mapping[str, range]


@dataclass(frozen=True)
class Truth:
    """What may be said of a world.

    Attributes:
        stories: The faults that have come to pass; none in a job that is healthy so far.
        suspects: Ranks that may be named besides, if without certainty.
        stuck: Ranks whose calls will never complete; none where all processes were killed or
            stopped at one moment: a job that was killed as a whole leaves the same records.
        harmless: Whether all ranks have come to their end all the same.
    """

    stories: tuple[Story, ...]
    suspects: frozenset[int]
    stuck: frozenset[int]
    harmless: bool

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that have a fault."""
        return frozenset(story.planted.rank for story in self.stories)


def truth_of(world: World, healthy: World, planted: tuple[Planted, ...], outcome: Outcome) -> Truth:
    """Return the truth about a world as it is observed.

    Args:
        world: The world.
        healthy: The same world without faults.
        planted: The faults.
        outcome: How far it came.
    """
    came = [each for each in planted if _came_to_pass(world, each, outcome)]
    stories = tuple(_story(world, healthy, each, outcome) for each in came)
    recorded = set(range(world.size)) - set(world.loss.missing) - set(world.absent)
    suspects = set(world.loss.missing) if came else set()
    guilty = {each.rank for each in came}
    for each in came:
        suspects.update(each.peers)
        for label in each.comms:
            members = recorded & set(world.comms[label])
            if 2 * len(guilty & members) >= len(members):
                suspects |= members
    stuck = frozenset(outcome.stuck()) if outcome.final else frozenset()
    if _ended_at_once(world, outcome):
        stuck = frozenset()
    harmless = outcome.final and not outcome.stuck() and not outcome.held
    return Truth(stories, frozenset(suspects - guilty), stuck, harmless)


def _ended_at_once(world: World, outcome: Outcome) -> bool:
    """Return whether all processes were killed or stopped, within a second."""
    cut_off = [
        outcome.ended.get(rank) == "kill" or outcome.held.get(rank) == "stop"
        for rank in range(world.size)
    ]
    seen = outcome.last_seen_ns
    return all(cut_off) and max(seen) - min(seen) < _AT_ONCE_NS


def _came_to_pass(world: World, planted: Planted, outcome: Outcome) -> bool:
    if planted.fault == "never_starts":
        return True
    if planted.fault == "busy":
        return outcome.held.get(planted.rank) == "busy"
    if planted.fault == "early_exit" and outcome.final:
        # It may wait for its last calls, but posts no further one.
        return outcome.begun[planted.rank] == planted.at
    reached = outcome.reached[planted.rank]
    if any(reached.get(thread, -1) >= planted.at for thread in planted.threads):
        return True
    return planted.rank in outcome.finished or (
        planted.edit == "deleted" and _has_enqueued_all(world, planted.rank, outcome)
    )


def _has_enqueued_all(world: World, rank: int, outcome: Outcome) -> bool:
    """Return whether a program has come to its end, though its calls may not complete."""
    acts = world.programs[rank]
    runs_on = world.backend == "nccl" and bool(acts) and not acts[-1].waits
    return runs_on and outcome.begun[rank] == len(acts)


def _story(world: World, healthy: World, planted: Planted, outcome: Outcome) -> Story:
    kinds = dict(planted.kinds)
    seqs: dict[str, range] = {}
    differs = False
    for label in planted.comms:
        own = _calls(outcome, planted.rank, label)
        peers = max(
            (_calls(outcome, rank, label) for rank in world.comms[label] if rank != planted.rank),
            key=len,
            default=[],
        )
        usual = [act for act in healthy.calls(planted.rank, label) if act.op not in P2P]
        first = _first_difference(own, peers)
        if first is None:
            continue
        differs = True
        places = [first, *_places(own, usual, planted)]
        if not _is_overwritten(world, outcome, planted):
            seqs[label] = range(min(places) + 1, max(places) + planted.count + 2)
        for kind in _alternatives(own, peers, first):
            # What a mismatch claims is what the records show.
            sure = kind.endswith("_mismatch") and planted.count == 1
            kinds.setdefault(kind, CERTAIN if sure else LIKELY)
    if planted.comms and not differs:
        # The records agree as far as they go: one rank is elsewhere, or has gone.
        kinds.setdefault("not_joined", CERTAIN)
        kinds.setdefault("order_cycle", LIKELY)
        if planted.rank in outcome.ended:
            kinds.setdefault("dead_rank", CERTAIN)
            kinds.setdefault("missing_call", CERTAIN)
    if outcome.ended.get(planted.rank, "exit") != "exit":
        kinds.setdefault("dead_rank", LIKELY)
    if planted.rank in world.loss.missing:
        kinds.setdefault("dead_rank", LIKELY)
        kinds.setdefault("not_joined", LIKELY)
        # Its calls are not recorded: where its peers wait need not be where it diverged.
        seqs = {}
    return Story(planted, kinds, planted.comms, seqs)


def _is_overwritten(world: World, outcome: Outcome, planted: Planted) -> bool:
    """Return whether the records of the place of a fault have made room for newer ones.

    They show that ranks differ by then, and not where it began.
    """
    posted = sum(each.index >= planted.at for each in outcome.posted[planted.rank])
    return 0 < world.loss.keeps < posted


def _calls(outcome: Outcome, rank: int, label: str) -> list[Act]:
    """Return the collectives that a rank has made on a communicator."""
    return [
        each.act for each in outcome.posted[rank] if each.act.comm == label and not each.act.is_p2p
    ]


def _looks(act: Act) -> tuple[object, ...]:
    """Return what the records show of a call."""
    return act.signature, act.line


def _first_difference(own: list[Act], peers: list[Act]) -> int | None:
    for place, (one, two) in enumerate(zip(own, peers, strict=False)):
        if _looks(one) != _looks(two):
            return place
    return None


def _places(own: list[Act], usual: list[Act], planted: Planted) -> Iterator[int]:
    """Yield the calls whose loss or repetition leads to the same records, by enumeration."""
    shown = [_looks(act) for act in own]
    whole = [_looks(act) for act in usual]
    count = max(1, len(whole) - len(own)) if planted.edit == "deleted" else planted.count
    for size in {count, planted.count}:
        for place in range(len(whole) + 1):
            if planted.edit == "deleted":
                made = whole[:place] + whole[place + size :]
            elif planted.edit == "inserted":
                made = whole[:place] + whole[max(0, place - size) : place] + whole[place:]
            else:
                return
            if made[: len(shown)] == shown:
                yield place


def _alternatives(own: list[Act], peers: list[Act], first: int) -> Iterator[str]:
    """Yield kinds of a single edit that lead to the same records."""
    mine = [_looks(act) for act in own[first:]]
    theirs = [_looks(act) for act in peers[first:]]

    def agree(one: list[tuple[object, ...]], two: list[tuple[object, ...]]) -> bool:
        return all(a == b for a, b in zip(one, two, strict=False))

    if agree(mine, theirs[1:]):
        yield "missing_call"
    if agree(mine[1:], theirs):
        yield "extra_call"
    if agree(mine[1:], theirs[1:]):
        yield from (f"{name}_mismatch" for name in MISMATCHES)
