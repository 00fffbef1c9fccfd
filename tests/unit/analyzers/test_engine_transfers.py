"""Why a transfer between two engines does not end, from what both ends recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from ncclscope.engine.verdict import Verdict
from ncclscope.export.jsonl import write_jsonl

BEGAN = 1_795_165_653_000_000_000
SECOND = 1_000_000_000


class Pair:
    """Traces of a prefill and a decode engine with one process each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: dict[str, list[dict[str, Any]]] = {"prefill": [], "decode": []}
        self.headers: dict[str, dict[str, Any]] = {"prefill": {}, "decode": {}}

    def end(
        self,
        engine: str,
        state: str,
        *,
        number: int = 1,
        begun: float = 0.0,
        changed: float = 0.0,
        **more: Any,
    ) -> None:
        """Add an end of transfer ``number``; times are in seconds."""
        receives = engine == "decode"
        self.lines[engine].append(
            {
                "transfer": "kv",
                "id": f"p{number}",
                "request": f"d{number}" if receives else f"p{number}",
                "engine": engine,
                "peer": "prefill" if receives else None,
                "direction": "recv" if receives else "send",
                "state": state,
                "begun_ns": BEGAN + int(begun * SECOND),
                "t_ns": BEGAN + int(changed * SECOND),
                **more,
            }
        )

    def verdict(self, after: float = 20.0) -> Verdict:
        """Return the verdict where both processes were last seen ``after`` seconds."""
        paths = []
        for place, (engine, lines) in enumerate(self.lines.items()):
            if not lines:
                continue
            header = {
                "ncclscope_trace": 1,
                "rank": 0,
                "world_size": 1,
                "host": "node",
                "pid": 100 + place,
                "run": engine,
                "started_ns": BEGAN - SECOND,
                "last_seen_ns": BEGAN + int(after * SECOND),
                **self.headers[engine],
            }
            path = self.directory / f"{engine}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
            paths.append(path)
        return diagnose(open_run(*paths))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def cause(verdict: Verdict) -> tuple[str, str]:
    assert verdict.cause is not None, verdict.summary
    assert verdict.cause.kind == "transfer_stalled"
    return verdict.cause.confidence, verdict.cause.summary


def test_a_transfer_that_ended_well_is_no_finding(pair: Pair) -> None:
    pair.end("prefill", "completed", changed=1)
    pair.end("decode", "completed", changed=1)
    verdict = pair.verdict()
    assert (verdict.status, verdict.findings) == ("ok", ())
    assert [run.sources for run in verdict.run.linked] == [verdict.run.sources]


def test_a_transfer_that_has_just_begun_is_no_finding(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="held")
    pair.end("decode", "started", phase="read", begun=0.5, changed=0.5)
    assert pair.verdict(after=0.9).findings == ()


def test_a_short_wait_is_reported_but_is_no_hang(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="held")
    pair.end("decode", "started", phase="read")
    verdict = pair.verdict(after=1.5)
    assert (verdict.status, verdict.cause) == ("unknown", None)
    assert [one.role for one in verdict.findings] == ["latent"]


def test_an_engine_that_has_ended_is_named_at_once(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="held")
    pair.end("decode", "started", phase="read", begun=0.5, changed=0.5, blocks=4)
    pair.headers["prefill"]["exited"] = True
    verdict = pair.verdict(after=1.0)
    confidence, summary = cause(verdict)
    assert confidence == "certain"
    assert "request d1" in summary.lower()
    assert "for 4 KV blocks: the sending engine prefill (node, pid 100) has ended" in summary
    assert verdict.status == "hung"
    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == ()  # rank 0 of which job?
    transfer = verdict.to_dict()["verdict"]["transfer"]
    assert transfer["processes"] == [{"host": "node", "pid": 100, "rank": 0}]
    assert (transfer["engine"], transfer["peer"]) == ("decode", "prefill")


def test_an_engine_without_heartbeat_is_likely_to_have_stopped(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="held")
    pair.end("decode", "started", phase="read", changed=0.5)
    pair.headers["prefill"]["last_seen_ns"] = BEGAN + SECOND
    confidence, summary = cause(pair.verdict())
    assert confidence == "likely"
    assert "worker rank 0 (pid 100) of the sending engine prefill no longer runs" in summary


def test_the_address_that_is_asked_is_compared_with_the_senders(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="held", host="10.0.0.1", port=5600)
    pair.end("decode", "started", phase="handshake", host="10.0.0.1", port=5601)
    _, summary = cause(pair.verdict(after=1.0))
    assert "asks 10.0.0.1:5601, but engine prefill answers handshakes at 10.0.0.1:5600" in summary


def test_another_name_of_the_same_host_is_no_wrong_address(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="held", host="node-1", port=5600)
    pair.end("decode", "started", phase="handshake", host="10.0.0.1", port=5600)
    assert pair.verdict(after=0.4).findings == ()


def test_a_request_that_the_sender_does_not_know_is_likely_lost_there(pair: Pair) -> None:
    pair.end("prefill", "completed", number=7)
    pair.end("decode", "started", phase="read")
    confidence, summary = cause(pair.verdict())
    assert confidence == "likely"
    assert "has no record of this request" in summary


def test_a_request_without_blocks_of_its_own_blames_nobody_else(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="asked for")
    pair.end("decode", "waiting", phase="blocks", blocks=7)
    confidence, summary = cause(pair.verdict())
    assert confidence == "likely"
    assert "engine decode (node, pid 101) has no free KV blocks for it" in summary


@pytest.mark.parametrize(("last_step", "status"), [(18.0, "unknown"), (1.0, "hung")])
def test_a_queue_before_an_engine_that_generates_is_no_hang(
    pair: Pair, last_step: float, status: str
) -> None:
    pair.end("prefill", "waiting", phase="asked for")
    pair.end("decode", "waiting", phase="queued", blocks=7)
    step = {"name": "step", "detail": "sample_tokens", "number": 9, "count": 9}
    began = BEGAN + int(last_step * SECOND)
    pair.headers["decode"]["activities"] = [{**step, "since_ns": began, "until_ns": began + 1}]
    verdict = pair.verdict()
    (finding,) = verdict.findings
    assert "Request d1 of engine decode (node, pid 101) has waited 20 s for" in finding.summary
    assert ("still generates for other requests" in finding.summary) == (status == "unknown")
    assert finding.role == ("latent" if status == "unknown" else "cause")
    assert verdict.status == status
    assert finding.summary in verdict.summary  # whatever else the job does: this is not agreement


def test_an_engine_that_is_not_read_is_not_accused(pair: Pair) -> None:
    pair.end("decode", "started", phase="read", peer="elsewhere", host="10.0.0.9", port=5600)
    confidence, summary = cause(pair.verdict())
    assert confidence == "ambiguous"
    assert "elsewhere at 10.0.0.9:5600, which is not among the engines read" in summary


def test_blocks_that_nobody_asked_for_are_named_while_they_are_kept(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="held", deadline_ns=BEGAN + 30 * SECOND)
    pair.end("decode", "completed", number=2, changed=1)
    verdict = pair.verdict()
    confidence, summary = cause(verdict)
    assert confidence == "likely"
    assert "engine decode never received the request" in summary
    assert verdict.cause is not None
    assert "in 10 s" in verdict.cause.inferred[0]


def test_blocks_that_are_asked_for_are_no_finding(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="asked for", deadline_ns=BEGAN + 30 * SECOND)
    pair.end("decode", "completed", number=2, changed=1)
    assert pair.verdict().findings == ()


@pytest.mark.parametrize(("later", "role"), [(False, "cause"), (True, "latent")])
def test_freed_blocks_that_were_read_are_a_cause_until_a_later_read_is_good(
    pair: Pair, later: bool, role: str
) -> None:
    pair.end("prefill", "expired", changed=5)
    pair.end("decode", "completed", changed=7)
    if later:
        pair.end("decode", "completed", number=2, begun=8, changed=9)
    verdict = pair.verdict()
    (finding,) = verdict.findings
    assert finding.role == role
    assert "2.0 s after the sending engine had freed them" in finding.summary
    assert verdict.status == ("ok" if later else "diverged")


def test_a_failure_counts_until_a_later_transfer_succeeds(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="asked for")
    pair.end("decode", "failed", phase="handshake_failed (no answer)", changed=5)
    assert "it failed (handshake failed (no answer))" in cause(pair.verdict())[1]
    pair.end("decode", "completed", number=2, begun=6, changed=7)
    assert pair.verdict().findings == ()


def test_a_request_that_waits_outranks_one_that_is_over(pair: Pair) -> None:
    pair.end("prefill", "expired", changed=5)
    pair.end("decode", "completed", changed=7)
    pair.end("prefill", "waiting", number=2, begun=8, changed=8, phase="held")
    pair.end("decode", "started", number=2, begun=8, changed=8, phase="read")
    verdict = pair.verdict()
    assert verdict.status == "hung"
    assert "d2" in cause(verdict)[1]
    assert [one.role for one in verdict.findings] == ["cause", "latent"]


def test_a_client_that_gave_up_is_no_finding(pair: Pair) -> None:
    pair.end("prefill", "waiting", phase="asked for")
    pair.end("decode", "failed", phase="aborted", changed=5)
    assert pair.verdict().findings == ()


def test_control_characters_of_foreign_files_do_not_reach_the_screen(pair: Pair) -> None:
    pair.end("decode", "started", phase="re\x1b[2Jad", request="r\x1b]0;x\x07", peer="p\x1b[1m")
    verdict = pair.verdict()
    assert verdict.cause is not None
    assert "\x1b" not in "".join([verdict.summary, *verdict.cause.evidence])


def test_an_exported_transfer_gives_the_same_verdict(pair: Pair, tmp_path: Path) -> None:
    pair.end("prefill", "waiting", phase="held", host="10.0.0.1", port=5600)
    pair.end("decode", "started", phase="handshake", host="10.0.0.1", port=5601, bytes=4096)
    first = pair.verdict()
    for place, run in enumerate((first.run, *first.run.linked)):
        (tmp_path / f"out{place}").mkdir()
        write_jsonl(run, tmp_path / f"out{place}")
    again = diagnose(open_run(tmp_path / "out0", tmp_path / "out1"))
    assert again.summary == first.summary
    assert again.run.ranks[0].transfers == first.run.ranks[0].transfers
