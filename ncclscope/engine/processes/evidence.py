"""The data sources of one process snapshot side by side, and where they disagree."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from ncclscope.engine.decision import ANALYZER, FROM_STACKS
from ncclscope.engine.processes.device_verdict import (
    Reading,
    compare_gpus,
    compare_ras_counts,
)
from ncclscope.engine.processes.kernel import kernel_text, sockets_text
from ncclscope.engine.processes.motion import STARVED, Motion, read_motions, read_places
from ncclscope.engine.processes.stack_classes import build_tree, classify
from ncclscope.engine.processes.stack_verdict import Judgement, judge_stacks
from ncclscope.model import Blame, Finding, Run
from ncclscope.model.snapshot import Snapshot
from ncclscope.wording.names import plural
from ncclscope.wording.stacks import Seen, starved_text

_LOOPBACK = re.compile(r"localhost$|127\.|::1$", re.IGNORECASE)
_MOST_LOCAL = 1024
"""Most ranks of one host."""


@dataclass(frozen=True)
class Evidence:
    """One data source and what it says.

    Attributes:
        name: ``rings``, ``stacks``, ``proc``, ``ras``, ``gpu``, ...
        available: Whether it was available.
        says: What it says, or why it is not available.
        ranks: Ranks that it identifies as diverging.
        agrees: Whether these are the verdict's; None where it names none.
        enable: How to make it available.
    """

    name: str
    available: bool
    says: str
    ranks: tuple[int, ...] = ()
    agrees: bool | None = None
    enable: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the data source, in a form for JSON."""
        return {
            "name": self.name,
            "available": self.available,
            "says": self.says,
            "ranks": list(self.ranks),
            "agrees": self.agrees,
            "enable": self.enable,
        }


def absent_ranks(snapshot: Snapshot) -> tuple[int, ...]:
    """Return the ranks that should run on this host and have no process.

    These are gaps in the rank numbers, and ranks beyond them that torchrun was to start, or that
    are to meet at an address that only this host has. With several hosts nothing is known: a host
    that could not be read leaves a gap, too.
    """
    if len(snapshot.hosts) > 1:
        return ()
    if any(worker.rank_source == "pid" for worker in snapshot.workers):
        return ()
    present = {worker.rank for worker in snapshot.workers}
    if len(present) < 2:
        return ()
    low, high = min(present), max(present) + 1
    for worker in snapshot.workers:
        local = worker.environment.get("LOCAL_RANK", "")
        if local.isdecimal() and worker.local_world_size:
            low = min(low, worker.rank - int(local[:6]))
            high = max(high, low + min(worker.local_world_size, _MOST_LOCAL))
        if _LOOPBACK.match(worker.environment.get("MASTER_ADDR", "")):
            low, high = 0, max(high, min(worker.world_size, _MOST_LOCAL))
    return tuple(rank for rank in range(low, high) if rank not in present)


def judge_snapshot(snapshot: Snapshot) -> list[Judgement]:
    """Return the joint judgements of stacks, GPUs and RAS, without rings.

    Stacks come first. Where they identify no rank, GPUs and RAS may; where the sources contradict
    each other, no rank is identified. Parts of a job that wait by themselves are left to stacks.
    """
    motions = read_motions(snapshot)
    found = judge_stacks(read_places(snapshot), snapshot.gap, absent_ranks(snapshot))
    readings = [("gpu", compare_gpus(snapshot)), ("ras", compare_ras_counts(snapshot))]
    naming = [(name, one) for name, one in readings if one is not None and one.ranks]
    if not naming or len(found) > 1:
        return found
    joint = _with_devices(found[0] if found else None, naming, motions)
    return [] if joint is None else [joint]


def _with_devices(
    found: Judgement | None, naming: list[tuple[str, Reading]], motions: Mapping[int, Motion]
) -> Judgement | None:
    """Return the judgement from stacks, weighed with those of GPUs and RAS that name ranks."""
    moving = [motion for motion in motions.values() if motion.condition == "moving"]
    lines = tuple(f"{name}: {one.says}" for name, one in naming)
    named = {one.ranks for _, one in naming}
    if found is None or found.role == "latent":
        if len(moving) * 2 > len(motions):
            return found
        return _from_devices(found, naming, lines, named)
    if found.diverging_ranks:
        others = {rank for ranks in named for rank in ranks} - set(found.diverging_ranks)
        if not others:
            return replace(found, evidence=found.evidence + lines)
        return replace(
            found.with_note(str(Seen.DISAGREE)).undecided(
                sorted({*found.diverging_ranks, *others})
            ),
            evidence=found.evidence + lines,
        )
    if len(named) == 1 and set(*named) <= set(found.candidate_ranks):
        (ranks,) = named
        who = " and ".join(name for name, _ in naming)
        return replace(
            found,
            blame=Blame.on(ranks),
            evidence=found.evidence + lines,
            inferred=(*found.inferred, Seen.AMONG.of(who)),
        )
    return replace(found, evidence=found.evidence + lines)


def _from_devices(
    found: Judgement | None,
    naming: list[tuple[str, Reading]],
    lines: tuple[str, ...],
    named: set[tuple[int, ...]],
) -> Judgement:
    agreed = len(named) == 1
    ranks = tuple(sorted({rank for ranks in named for rank in ranks}))
    first = naming[0][1]
    return Judgement(
        kind=first.kind,
        summary=f"{'; '.join(one.says for _, one in naming)}.",
        blame=Blame.on(ranks) if agreed else Blame.among(ranks),
        odd=found.odd if found else None,
        peers=found.peers if found else None,
        evidence=(found.evidence if found else ()) + lines,
        is_by_devices=True,
    )


def gather_evidence(run: Run, cause: Finding | None) -> tuple[Evidence, ...]:
    """Return what each data source of a run's snapshot says, compared with the verdict."""
    snapshot = run.snapshot
    if snapshot is None:
        return ()
    motions = read_motions(snapshot)
    stacks = judge_stacks(read_places(snapshot), snapshot.gap, absent_ranks(snapshot))
    named: dict[str, tuple[str, tuple[int, ...]]] = {}
    if stacks:
        say = _names if _are_all_of(cause, stacks, snapshot) else attrgetter("summary")
        apart = sorted({rank for one in stacks for rank in one.diverging_ranks})
        named["stacks"] = ("; ".join(map(say, stacks)), tuple(apart))
    elif motions:
        moving = sum(motion.condition == "moving" for motion in motions.values())
        text = Seen.ALL_MOVE.of(moving, plural(len(motions), "rank"))
        named["stacks"] = (text, ())
    if slow := {rank: one.delayed for rank, one in motions.items() if one.delayed >= STARVED}:
        named["proc"] = (starved_text(slow), ())
    readings = ("gpu", compare_gpus(snapshot)), ("ras", compare_ras_counts(snapshot))
    for name, reading in readings:
        if reading is not None:
            named[name] = (reading.says, reading.ranks)
    for name, says in ("kernel log", kernel_text(run)), ("sockets", sockets_text(snapshot)):
        if says:
            named[name] = (says, ())
    if any(rank.logs for rank in run.ranks) and cause is not None and _is_recorded(cause):
        named["rings"] = (str(Seen.FROM_RINGS), cause.diverging_ranks)
    evidence = []
    for source in snapshot.sources:
        says, ranks = named.get(source.name, ("", ()))
        agrees = None
        if ranks and cause is not None and source.available:
            verdict = set(cause.diverging_ranks or cause.candidate_ranks)
            # One that names further ranks may see a second cause.
            agrees = set(ranks) <= verdict or verdict <= set(ranks) if verdict else None
            if source.name == "stacks" and any(_follows(one, cause) for one in stacks):
                agrees = None  # both are right: one posted an extra call, so the other is not there
                says = Seen.FOLLOWS.of(says)
        evidence.append(
            Evidence(
                name=source.name,
                available=source.available,
                says=(says or source.state) if source.available else source.state,
                ranks=ranks if source.available else (),
                agrees=agrees,
                enable=source.enable,
            )
        )
    return tuple(evidence)


def _are_all_of(cause: Finding | None, stacks: Sequence[Judgement], snapshot: Snapshot) -> bool:
    """Return whether a verdict already has the words of the stacks' judgements, and no more."""
    if cause is None or cause.analyzer != FROM_STACKS:
        return False
    alike = [one for one in stacks if len(one.notes) == len(cause.notes)]
    judged = [one for one in judge_snapshot(snapshot) if not one.is_by_devices]
    return bool(alike) and any(one.kind == cause.kind for one in judged)


def _names(found: Judgement) -> str:
    if found.diverging_ranks:
        return Seen.APART.of(found.diverging_ranks)
    return Seen.NO_MAJORITY.of(found.candidate_ranks)


def _follows(found: Judgement, cause: Finding) -> bool:
    """Return whether the ranks that did not join are the peers of a recorded extra call."""
    is_extra = cause.kind == "extra_call" and _is_recorded(cause) and cause.comm is not None
    if not is_extra or found.kind != "not_joined" or not found.diverging_ranks:
        return False
    peers = set(cause.comm.ranks if cause.comm else ()) - set(cause.diverging_ranks)
    return bool(cause.diverging_ranks) and set(found.diverging_ranks) <= peers


def _is_recorded(cause: Finding) -> bool:
    return cause.analyzer not in (FROM_STACKS, ANALYZER)


def describe_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Return the classes and the tree of a snapshot, in a form for JSON."""
    motions = read_motions(snapshot)
    return {
        "gap": snapshot.gap,
        "classes": [
            {
                "ranks": list(group.ranks),
                "at": group.motion.text,
                "op": group.motion.op,
                "waits": group.motion.waits,
                "condition": group.motion.condition,
            }
            for group in classify(motion for motion in motions.values() if motion.frames)
        ],
        "tree": [node.to_dict() for node in build_tree(motions)],
        "processes": [
            {
                "rank": motion.rank,
                "pid": motion.worker.pid,
                "rank_source": motion.worker.rank_source,
                "condition": motion.condition,
                "site": motion.place.site if motion.place else None,
                "user_site": motion.user_place.site if motion.user_place else None,
                "waits": motion.waits,
                "why": motion.why,
                "cpu": round(motion.cpu, 3),
                "state": motion.worker.samples[-1].state if motion.worker.samples else "",
                "wchan": motion.worker.samples[-1].wchan if motion.worker.samples else "",
            }
            for motion in motions.values()
        ],
    }
