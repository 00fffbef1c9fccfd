"""Requests that wait in an engine whose scheduler admits none."""

from __future__ import annotations

from collections.abc import Iterable

from ncclscope.engine.case import Case
from ncclscope.engine.services.requests import stepping, unscheduled
from ncclscope.engine.transfers.engines import Engines
from ncclscope.model import Blame, Finding
from ncclscope.wording.names import plural
from ncclscope.wording.notes import Requests


class NotScheduled:
    """Requests wait in an engine, and no step has had tokens since."""

    name = "not_scheduled"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each engine that schedules nothing; it names no rank.

        None while transfers of KV blocks are open: the requests may wait for those.
        """
        received = (one.receive for one in Engines(case.run).joined)
        if any(end is not None and not end.ended for end in received):
            return
        for one in unscheduled(case.run):
            if one.seconds >= case.live_stall_seconds:
                engine = one.engine
                yield Finding(
                    kind=self.name,
                    summary=Requests.NOT_SCHEDULED.of(
                        engine.labels.get("engine", "0"),
                        engine.pid,
                        one.seconds,
                        plural(one.requests, "request"),
                        Requests.COUNTED.of(one.counts) if one.counts else "",
                    ),
                    blame=Blame.on(()),
                    role="cause",
                    evidence=(Requests.COUNTS.of(one.counts),) if one.counts else (),
                    inferred=(str(Requests.NO_RANK),),
                    hangs=True,
                )
        yield from self._seen(case)

    def _seen(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each engine whose stacks show that it schedules nothing."""
        gap = 0.0 if case.run.snapshot is None else case.run.snapshot.gap
        for one in stepping(case.run):
            if one.schedules_nothing and gap >= case.live_stall_seconds:
                yield Finding(
                    kind=self.name,
                    summary=Requests.STEPS.of(one.pid, gap),
                    blame=Blame.on(()),
                    role="cause",
                    evidence=(Requests.SLEPT.of(one.without_tokens, one.samples),),
                    inferred=(str(Requests.NO_RANK),),
                    hangs=True,
                )
