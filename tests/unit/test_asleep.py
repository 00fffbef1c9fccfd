"""A rank in a timed sleep is late: nothing else ends the sleep, and it goes on after it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope import procfs
from ncclscope.attach.proc_sample import read_sample
from ncclscope.clock import CLOCK, difference_ns
from ncclscope.engine.verdict import Verdict, diagnose
from ncclscope.model import Rank
from ncclscope.model.activities import ASLEEP, STORE_WAIT
from ncclscope.model.snapshot import ProcessSample
from ncclscope.readers.bundle import read_snapshot, with_snapshot
from ncclscope.tracing import heart
from tests.support.cluster import Cluster
from tests.support.rings import fill, read, tracer_in
from tests.support.snapshots import elsewhere, in_collective, judged, snapshot, worker

SECOND = 1_000_000_000


def named(verdict: Verdict) -> tuple[str, str, tuple[int, ...], str]:
    cause = verdict.cause
    assert cause is not None
    return verdict.status, cause.kind, cause.diverging_ranks, cause.confidence


def waits_for(directory: Path, number: int) -> Cluster:
    """Let one of four ranks be absent where the others have waited for 60 s."""
    cluster = Cluster(directory, 4)
    cluster.history()
    rest = [rank for rank in cluster.everybody if rank != number]
    cluster.post(rest, "tp:0", done=False)
    return cluster


def sleeps(
    cluster: Cluster, number: int, since: float, length: float, *, ends: bool = False
) -> None:
    """Let a rank sleep for some seconds from that many after its last call on."""
    last = cluster.run().by_rank[number].last_call()
    assert last is not None
    assert last.time_ns
    slot = cluster.tracers[number].activity(ASLEEP)
    begun = slot.begin(number=int(length * 1000), since=last.time_ns + int(since * SECOND))
    if ends:
        slot.end(begun)


@pytest.mark.parametrize(
    ("since", "length", "kind"),
    [
        (1.0, 70.0, "late"),
        (30.0, 31.0, "late"),  # after shorter ones, as who tries again after ever longer pauses
        (58.0, 5.0, "not_joined"),  # one of many: it polls
        (1.0, 3600.0, "not_joined"),  # nobody waits for an hour
    ],
)
def test_a_rank_in_one_sleep_that_ends_soon_is_late(
    tmp_path: Path, since: float, length: float, kind: str
) -> None:
    cluster = waits_for(tmp_path, 2)
    sleeps(cluster, 2, since, length)

    verdict = cluster.verdict()

    assert named(verdict)[:3] == ("unknown" if kind == "late" else "hung", kind, (2,))
    if kind == "late":
        assert verdict.cause is not None
        assert any("one sleep" in text for text in verdict.cause.evidence)


def test_a_sleep_that_has_ended_excuses_nobody(tmp_path: Path) -> None:
    cluster = waits_for(tmp_path, 2)
    sleeps(cluster, 2, 1.0, 70.0, ends=True)

    assert named(cluster.verdict())[:3] == ("hung", "not_joined", (2,))


def test_who_sleeps_in_a_call_is_in_that_call(tmp_path: Path) -> None:
    """Libraries that poll sleep, too."""
    cluster = waits_for(tmp_path, 2)
    sleeps(cluster, 1, 1.0, 70.0)

    assert named(cluster.verdict())[:3] == ("hung", "not_joined", (2,))


@pytest.mark.parametrize("length", [70.0, 3600.0])
def test_who_is_to_set_a_key_may_be_asleep(tmp_path: Path, length: float) -> None:
    cluster = Cluster(tmp_path, 3)
    cluster.history("world")
    run = cluster.run()
    for number in (1, 2):
        last = run.by_rank[number].last_call()
        assert last is not None
        assert last.time_ns
        slot = cluster.tracers[number].activity(STORE_WAIT)
        slot.begin("wait epoch1", number=300, since=last.time_ns)
    sleeps(cluster, 0, 1.0, length)

    verdict = cluster.verdict()

    kind = "late" if length < 100 else "init_stalled"
    assert named(verdict)[:3] == ("unknown" if kind == "late" else "hung", kind, (0,))


def asleep(rank: int, until: float, *, switches: int = 0) -> dict[str, object]:
    """Return the samples of a rank whose sleep ends that many seconds after the snapshot."""
    one = worker(rank, elsewhere(9), switches=switches)
    wakes = 1 + int(until * SECOND)
    return {
        "samples": tuple(replace(each, wakes_ns=wakes, blocked="sleep") for each in one.samples)
    }


@pytest.mark.parametrize(
    ("until", "switches", "is_late"),
    [(9.0, 0, True), (9.0, 3, False), (15.0, 3, True), (3600.0, 0, False)],
)
def test_samples_show_one_long_sleep(until: float, switches: int, is_late: bool) -> None:
    sleeping = replace(
        worker(3, elsewhere(9)),
        **asleep(3, until, switches=switches),  # type: ignore[arg-type]
    )
    verdict = judged(
        *(worker(rank, in_collective("all_reduce", 12)) for rank in range(3)), sleeping, gap=12.0
    )

    kinds = {(one.kind, one.role) for one in verdict.findings}
    assert (("not_joined", "cause") in kinds) is not is_late
    assert ("late" in {kind for kind, _ in kinds}) is is_late


def test_a_bundle_keeps_when_a_rank_wakes_and_how_much_it_read(tmp_path: Path) -> None:
    now = time.time_ns()
    samples = [
        ProcessSample("S", wakes_ns=now + SECOND, io_bytes=size) for size in (1 << 30, 1 << 31)
    ]
    document = snapshot([replace(worker(0, elsewhere(9)), samples=tuple(samples))]).to_dict()
    (tmp_path / "attach.json").write_text(json.dumps(document))

    (found,) = read_snapshot(tmp_path / "attach.json").workers

    assert found.samples == tuple(samples)


def test_heartbeats_count_more_than_two_samples(tmp_path: Path) -> None:
    """Between them, one of many short sleeps may look like the only one."""
    cluster = waits_for(tmp_path, 2)
    sleeps(cluster, 2, 58.0, 5.0)
    cluster.tracers[2].activity("cpu").begin(number=1, since=1)
    sleeping = replace(worker(2, elsewhere(9)), **asleep(2, 4.0))  # type: ignore[arg-type]
    others = [worker(rank, in_collective("all_reduce", 12)) for rank in (0, 1, 3)]

    verdict = diagnose(with_snapshot(cluster.run(), snapshot([*others, sleeping])))

    assert named(verdict)[:3] == ("hung", "not_joined", (2,))


@pytest.mark.parametrize("program", ["import time; time.sleep(600)", "input()"])
def test_the_kernel_shows_when_a_sleep_ends(program: str) -> None:
    began = time.time_ns()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        until = time.monotonic() + 30
        while not (found := read_sample(process.pid)).blocked and time.monotonic() < until:
            time.sleep(0.01)
        shown = read_sample(process.pid).wakes_ns
        assert procfs.switches(process.pid) >= 0
        process.kill()

    if "sleep" not in program:
        assert shown == 0
    elif sys.version_info >= (3, 11) and found.blocked == "sleep":
        assert began <= shown - 600 * SECOND <= time.time_ns()


class Sleeper:
    """What the kernel shows of a thread, by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.until, self.switches, self.now = 0, 1, 100 * SECOND
        monkeypatch.setattr(heart, "sleeps_until", lambda _: self.until)
        monkeypatch.setattr(heart, "switches", lambda _: self.switches)
        monkeypatch.setattr(heart, "now_ns", lambda: self.now + CLOCK)


@pytest.mark.both_writers
def test_heartbeats_note_one_sleep_and_its_end(
    rings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Sleeper(monkeypatch)
    tracer = tracer_in(rings)
    comm = tracer.communicator("k")
    fill(tracer, comm, 1, 3)
    beating = heart.Heart(tracer.ring, tracer.activity)

    def beat() -> Rank:
        beating.beat()
        shown.now += SECOND
        return read(tracer.path)

    shown.until = shown.now + 20 * SECOND
    assert all(ASLEEP not in beat().activities for _ in range(2))
    found = beat().activities[ASLEEP]
    assert (found.number, found.until_ns) == (19_000, None)
    assert abs(found.since_ns - 101 * SECOND - difference_ns()) < SECOND

    shown.switches += 1  # it has woken, and sleeps again
    assert beat().activities[ASLEEP].until_ns is not None
    shown.until = shown.now + 5 * SECOND
    assert beat().activities[ASLEEP].until_ns is None

    fill(tracer, comm, 3, 4)
    assert beat().activities[ASLEEP].until_ns is not None
