"""Asks everything of what was read, as analyzers do; only our own errors may come of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ncclscope import NcclscopeError, Run, open_run


def survive(path: Path) -> Run | None:
    """Read a path and ask everything; return the run, or None when it was refused."""
    try:
        run = open_run(path)
        ask(run)
    except NcclscopeError as error:
        refusal = error
    else:
        return run
    assert refusal.exit_status == 2
    assert "\n" not in str(refusal)
    return None


def ask(run: Run) -> None:
    """Ask everything of a run."""
    assert len(run.missing) <= 1 << 20
    for note in run.notes:
        note.encode()
    for rank in (*run.ranks, *run.others):
        json.dumps(
            [rank.host, rank.labels, rank.rank, rank.world_size, rank.pid, rank.gpu]
        ).encode()
        rank.host.encode()
        rank.source.encode()
        for key, log in rank.logs.items():
            key.encode()
            log.communicator.label.encode()
            assert 1 <= log.first <= log.calls + 1
            log.fingerprint(log.first - 1)
            log.fingerprint(log.calls)
            for start in {log.first, max(log.first, log.calls - 20)}:
                stop = min(log.calls + 1, start + 20)
                calls = log.span(start, stop)
                assert [call.seq for call in calls] == list(range(start, stop))
                assert list(log.signatures(start, stop)) == [call.signature for call in calls]
                for call in calls:
                    json.dumps(call.to_dict(), ensure_ascii=False).encode()
                    assert log.fingerprint(call.seq) >= 0
            middle = (log.first + log.calls) // 2
            if middle >= log.first:
                assert log.call(middle).seq == middle
        for calls in rank.p2p.values():
            for call in list(calls)[:20]:
                json.dumps(call.to_dict(), ensure_ascii=False).encode()
        assert len(list(rank.steps)) >= 0
        for activity in rank.activities.values():
            json.dumps(asdict(activity), ensure_ascii=False).encode()
            assert activity.until_ns is None or activity.until_ns > 0
        rank.last_call()
