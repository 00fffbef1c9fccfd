"""A ring's notes on its probes and on what they do not see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ncclscope import diagnose
from ncclscope.model import Rank
from ncclscope.readers import open_run
from ncclscope.readers.jsonl.trace import read_trace, write_trace
from ncclscope.tracing import coverage, session
from ncclscope_patches.probes.probe import Patch
from tests.support.rings import read, tracer_in


@pytest.fixture(autouse=True)
def process(rings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Act as a fresh process that is traced."""
    monkeypatch.setenv("NCCLSCOPE_DIR", str(rings))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(coverage, "_probes", {})
    monkeypatch.setattr(session, "_described", {})
    session._reset()
    yield
    session._reset()


def ring_of() -> Rank:
    """Read this process's ring, making it where there is none yet."""
    tracer = session.current()
    assert tracer is not None
    return read(tracer.path)


class Observer(Patch):
    """Watches one function."""

    name = "observer"
    target = "tests_observed"

    def install(self, module: Any) -> None:
        self.replace(module, "work", before=self.see)

    def see(self, args: Any, kwargs: Any) -> None:
        if args == ("bad",):
            raise ValueError("asked for by the test")


class Broken(Observer):
    name = "broken"

    def install(self, module: Any) -> None:
        raise LookupError("no such class")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = ModuleType("tests_observed")
    made.work = lambda *args: args
    monkeypatch.setitem(__import__("sys").modules, "tests_observed", made)
    return made


def test_a_ring_that_is_made_later_names_the_probes(module: Any) -> None:
    Observer().apply()
    Broken().apply()
    assert session.opened() is None or "observer" in ring_of().details["probes"]

    assert ring_of().details["probes"] == {
        "observer": {"state": "on", "why": ""},
        "broken": {"state": "refused", "why": "LookupError: no such class"},
    }


def test_a_probe_that_fails_has_ended_and_says_why(module: Any) -> None:
    Observer().apply()
    assert ring_of().details["probes"]["observer"]["state"] == "on"
    module.work("bad")

    found = ring_of().details["probes"]["observer"]

    assert found == {"state": "ended", "why": "ValueError: asked for by the test"}


def test_a_probe_that_was_taken_back_has_ended(module: Any) -> None:
    probe = Observer()
    probe.apply()
    probe.revert()
    assert ring_of().details["probes"]["observer"] == {"state": "ended", "why": "taken back"}


def test_what_records_nothing_is_not_listed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Observer, "records", False)
    Observer().apply()
    assert "probes" not in ring_of().details


def test_what_is_not_seen_is_in_the_ring_from_the_start() -> None:
    coverage.unseen("ddp", "buckets are posted by C++", ["c10d:1"])
    (found,) = ring_of().details["unseen"]
    assert found.pop("since_ns") > 0
    assert found == {"kind": "ddp", "text": "buckets are posted by C++", "comms": ["c10d:1"]}

    coverage.unseen("ddp", "buckets are posted by C++", ["c10d:2"])
    coverage.unseen("rpc", "remote calls")

    first, second = ring_of().details["unseen"]
    assert first["comms"] == ["c10d:1", "c10d:2"]
    assert (second["kind"], second["comms"]) == ("rpc", [])
    assert coverage.is_unseen("ddp", "c10d:2")
    assert not coverage.is_unseen("rpc", "c10d:2")


def test_communicators_that_are_not_known_or_too_many_may_be_any() -> None:
    coverage.unseen("ddp", "text", ["a"])
    coverage.unseen("ddp", "text")
    coverage.unseen("ddp", "text", ["b"])
    for number in range(50):
        coverage.unseen("fsdp", "text", [f"comm {number}"])

    assert [entry["comms"] for entry in ring_of().details["unseen"]] == [[], []]


def test_a_note_that_repeats_does_not_touch_the_ring() -> None:
    coverage.unseen("ddp", "text", ["a"])
    tracer = session.current()
    assert tracer is not None
    written = tracer.ring._about_generation
    coverage.unseen("ddp", "text", ["a"])
    assert tracer.ring._about_generation == written


def test_notes_leave_room_for_what_a_process_says_of_itself() -> None:
    for number in range(200):
        coverage.probe(f"probe.function_{number}", coverage.REFUSED, "x" * 1000)
        coverage.unseen(f"kind {number}", "y" * 1000, [f"c10d:{digit:032x}" for digit in range(9)])

    about = ring_of().details

    assert about["pid"] == os.getpid()
    assert about["host"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_the_probes_and_uses_nothing_yet(module: Any) -> None:
    Observer().apply()
    coverage.unseen("ddp", "text", ["a"])
    assert ring_of().details["unseen"]
    child = os.fork()
    if not child:
        try:
            about = ring_of().details
            good = about["unseen"] == [] and about["probes"]["observer"]["state"] == "on"
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_trace_carries_both_on(rings: Path, tmp_path: Path) -> None:
    coverage.probe("c10d", coverage.ON)
    coverage.probe("pynccl.all_gather", coverage.REFUSED, "unknown signature")
    coverage.unseen("ddp", "text", ["a"])
    rank = ring_of()
    write_trace(rank, tmp_path / "0.jsonl")

    again = read_trace(tmp_path / "0.jsonl")

    assert again.details["probes"] == rank.details["probes"]
    assert again.details["unseen"] == rank.details["unseen"]


def test_the_plain_text_of_older_rings_is_of_another_kind(rings: Path) -> None:
    tracer = tracer_in(rings)
    tracer.describe(unseen="all_reduce fused with a norm into one kernel")
    (found,) = read(tracer.path).details["unseen"]
    assert found["kind"] == "other"
    assert found["text"] == "all_reduce fused with a norm into one kernel"
    assert found["comms"] == []


@pytest.mark.parametrize(
    "about", [{"unseen": {"a": 1}}, {"unseen": [1, {"kind": "x"}]}, {"probes": [1]}]
)
def test_what_is_no_such_list_is_left_out(rings: Path, about: dict[str, Any]) -> None:
    tracer = tracer_in(rings)
    tracer.describe(**about)
    run = open_run(tracer.path)
    assert not run.ranks[0].details.get("unseen")
    assert not run.ranks[0].details.get("probes")
    diagnose(run)
