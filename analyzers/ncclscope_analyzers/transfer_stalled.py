"""A transfer between engines that does not end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.transfers.engines import Engines, Joined
from ncclscope.engine.transfers.reasons import Reason, Thresholds, find_reason
from ncclscope.model import Blame, Finding
from ncclscope.wording.stalls import end_state, request

_CONFIDENCE = ("certain", "likely", "ambiguous")


class TransferStalled:
    """A request waits for KV blocks of another engine, which do not come."""

    name = "transfer_stalled"

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield a finding for each reason, about the transfer that has waited longest."""
        engines = Engines(case.run)
        limits = Thresholds(case.live_stall_seconds, case.stall_seconds)
        every = [(one, find_reason(engines, one, limits)) for one in engines.joined]
        hangs = any(reason and reason.hangs and reason.role == "cause" for _, reason in every)
        groups: dict[tuple[object, ...], list[tuple[Joined, Reason]]] = {}
        for one, reason in every:
            if reason is None:
                continue
            if hangs and not reason.hangs:
                reason = replace(reason, role="latent")  # what is over explains no wait
            end = one.receive or one.send
            assert end is not None
            fault = tuple((process.host, process.pid) for process in reason.at_fault)
            likewise = fault or (reason.lack, reason.detail)
            pair = end.engine, end.peer, reason.role, likewise
            groups.setdefault(pair, []).append((one, reason))
        for found in sorted(groups.values(), key=_weight):
            yield _finding(engines, found, case)


def _weight(found: list[tuple[Joined, Reason]]) -> tuple[int, bool, int]:
    """Return a sort key: what is certain first, then requests that wait, then the oldest."""
    one, reason = found[0]
    return _CONFIDENCE.index(reason.confidence), one.receive is None, one.begun_ns


def _finding(engines: Engines, found: list[tuple[Joined, Reason]], case: Case) -> Finding:
    one, reason = min(found, key=lambda pair: _CONFIDENCE.index(pair[1].confidence))
    end = one.receive or one.send
    assert end is not None
    since = engines.seconds_since(one.begun_ns)
    name, others = engines.by_id[end.engine].name, len(found) - 1
    over, latent = end.ended and not reason.hangs, reason.role == "latent"
    own = {id(process): process.rank for process in case.run.ranks}
    singled = tuple(sorted(own[id(one)] for one in reason.at_fault if id(one) in own))
    return Finding(
        kind="transfer_stalled",
        summary=request(end, name, others, since, reason.missing, over=over, latent=latent),
        blame=Blame.on(singled, reason.confidence),
        role=reason.role,
        evidence=(*_facts(engines, one), *reason.evidence),
        inferred=reason.next,
        hangs=reason.hangs,
        transfer={
            **end.to_dict(),
            "peer": end.peer or (one.receive.engine if one.receive is not None else None),
            "missing": reason.missing,
            "waited_seconds": round(since, 1),
            "processes": [
                {"host": process.host, "pid": process.pid, "rank": process.rank}
                for process in reason.at_fault
            ],
            "next": list(reason.next),
            "others": others,
        },
    )


def _facts(engines: Engines, one: Joined) -> Iterable[str]:
    """Yield what both ends recorded."""
    for end in (one.receive, one.send):
        if end is None:
            continue
        name = engines.by_id[end.engine].name
        yield end_state(end, name, engines.seconds_since(end.changed_ns))
