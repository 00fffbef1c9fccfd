"""The rows of the table: what is on and what is off, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cluster import Cluster, workplace
from load import Judged, Load, judge, run_load
from parity import Parity, compare
from plan import Plan
from shared_memory_reference import lock_held

__all__ = ["ROWS", "Measured", "Row", "run_rows"]

_TIMES = 10
"""A collective may take this many times as long as the baseline's longest."""
_LEAST_SECONDS = 3.0
_UNSCALED_SECONDS = 10.0


@dataclass(frozen=True)
class Row:
    """One experiment.

    Attributes:
        name: As it is asked for.
        title: As it is printed.
        way: How routing gets to the answers.
        save: In the old way: whether workers write.
        read: In the old way: whether the scheduler reads.
        share: Of the requests that opt in.
    """

    name: str
    title: str
    way: str = "off"
    save: bool = False
    read: bool = False
    share: float = 0.0


ROWS = (
    Row("baseline", "baseline"),
    Row("old", "old: save and read", "old", save=True, read=True, share=1.0),
    Row("old-read", "old: read only", "old", read=True, share=1.0),
    Row("old-save", "old: save only", "old", save=True),
    Row("old-neither", "old: neither", "old"),
    Row("new-none", "new: nobody opts in", "new"),
    Row("new-half", "new: half opt in", "new", share=0.5),
    Row("new-all", "new: all opt in", "new", share=1.0),
)


@dataclass(frozen=True)
class Measured:
    """Outcome of a row.

    Attributes:
        row: The row.
        seconds: That the load took.
        timeout: Seconds that a collective was given.
        hung: Whether one took longer.
        judged: The answers.
        figures: Of all processes, by name: times in microseconds.
        workers: What the workers' rings say.
        engines: What the schedulers' rings say; None where there is only one.
    """

    row: Row
    seconds: float
    timeout: float
    hung: bool
    judged: Judged
    figures: dict[str, int]
    workers: Parity
    engines: Parity | None

    @property
    def throughput(self) -> float:
        """Tokens that were generated in a second."""
        return self.judged.tokens / self.seconds

    @property
    def timeout_share(self) -> float:
        """Longest collective, as a part of what it was given."""
        return self.figures["wait_us"] / 1e6 / self.timeout

    @property
    def parity(self) -> bool:
        """Whether all ranks of both jobs posted the same."""
        return self.workers.good and (self.engines is None or self.engines.good)

    @property
    def good(self) -> bool:
        """Whether it is as it has to be. That the old way hangs or errs is a result."""
        judged = self.judged
        if judged.wrong_tokens or self.figures["wrong_rows"]:
            return False
        if self.row.way == "old" and self.hung:
            return True
        answered = not judged.unanswered and not judged.refused
        right = self.row.way == "old" or not judged.wrong
        return self.parity and not self.hung and answered and right

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            **asdict(self),
            "throughput": self.throughput,
            "timeout_share": self.timeout_share,
            "parity": self.parity,
            "good": self.good,
        }


def run_rows(
    rows: Sequence[Row], plan: Plan, load: Load, timeout: float | None, hold: float = 0.0
) -> Iterator[Measured]:
    """Run rows one after the other.

    Args:
        rows: The rows.
        plan: What they have in common.
        load: Likewise.
        timeout: Seconds that a collective is given; None to go by the baseline's longest one.
        hold: Seconds for which another process has the lock of the first replica's segment.
    """
    given = timeout
    for row in rows:
        print(f"{row.title} ...", file=sys.stderr, flush=True)
        scaled = row.way == "off" and timeout is None
        seconds = plan.timeout if scaled else given or _UNSCALED_SECONDS
        measured = run_row(row, replace(plan, timeout=seconds), load, hold)
        if scaled:
            given = max(_LEAST_SECONDS, _TIMES * measured.figures["wait_us"] / 1e6)
            measured = replace(measured, timeout=given)
        yield measured


def run_row(row: Row, plan: Plan, load: Load, hold: float = 0.0) -> Measured:
    """Run one."""
    with workplace() as place:
        plan = replace(plan, workplace=str(place), way=row.way, save=row.save, read=row.read)
        load = replace(load, share=load.share * row.share)
        phases = load.phases(plan.dp)
        with Cluster(plan) as cluster, lock_held(plan.segment(0), hold):
            print("  ready", file=sys.stderr, flush=True)
            replies, seconds = run_load(
                cluster.port, phases, load.concurrency, lambda: cluster.hung
            )
            hung = cluster.hung
            if hung:
                cluster.board.stall_under_way()
            else:
                cluster.end()
            figures = cluster.board.figures()
        judged = judge(plan, replies, sum(map(len, phases)))
        engines = compare(plan.engine_rings) if plan.dp > 1 else None
        workers = compare(plan.rings)
    return Measured(row, seconds, plan.timeout, hung, judged, figures, workers, engines)
