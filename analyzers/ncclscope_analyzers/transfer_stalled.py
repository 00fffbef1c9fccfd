"""A transfer between engines that does not end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ncclscope.engine.case import Case
from ncclscope.engine.transfers.engines import Engines, Joined
from ncclscope.engine.transfers.reasons import Reason, Thresholds, find_reason
from ncclscope.model import Finding
from ncclscope.untrusted import printable
from ncclscope.wording.names import plural, sentence

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
    waits = end.direction == "recv"
    request = f"request {printable(end.request or end.id)}"
    engine = engines.by_id[end.engine]
    more = f" ({plural(len(found) - 1, 'more request')} likewise)" if len(found) > 1 else ""
    if not waits:
        what = f"{request} of {engine.name}{more} has waited {since:.0f} s for"
        if reason.role == "latent":
            what = f"{request} of {engine.name}{more}:"
    elif reason.hangs or not end.ended:
        blocks = plural(end.blocks, "KV block") if end.blocks else "KV blocks"
        what = f"{request} of {engine.name}{more} has waited {since:.0f} s for {blocks}:"
    else:
        what = f"{request} of {engine.name}{more} did not get its KV blocks:"
        if end.state == "completed":
            what = f"{request} of {engine.name}{more} got KV blocks:"
    own = {id(process): process.rank for process in case.run.ranks}
    singled = tuple(sorted(own[id(one)] for one in reason.at_fault if id(one) in own))
    return Finding(
        kind="transfer_stalled",
        summary=f"{sentence(what)} {reason.missing}.",
        diverging_ranks=singled,
        confidence=reason.confidence,
        role=reason.role,
        analyzer="transfer_stalled",
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
            "others": len(found) - 1,
        },
    )


def _facts(engines: Engines, one: Joined) -> Iterable[str]:
    """Yield what both ends recorded."""
    for end in (one.receive, one.send):
        if end is None:
            continue
        what = "receives" if end.direction == "recv" else "sends"
        phase = f" ({printable(end.phase).replace('_', ' ')})" if end.phase else ""
        since = engines.seconds_since(end.changed_ns)
        yield (
            f"{engines.by_id[end.engine].name} {what} transfer {printable(end.id)}: "
            f"{end.state}{phase} for {since:.0f} s"
        )
