"""Bundles that somebody else wrote, Flight Recorder pipes, and what is left out."""

from __future__ import annotations

import gzip
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.attach.bundle import redact, write_bundle
from ncclscope.attach.flight_pipe import PIPE_VARIABLE, ask_for_dump
from ncclscope.attach.session import JobSample, _read_rings
from ncclscope.engine.verdict import diagnose
from ncclscope.errors import DamagedFileError, InputError
from ncclscope.model.sites import join
from ncclscope.readers import assemble
from ncclscope.readers.bundle import CAPTURE_FILE, read_snapshot, with_snapshot
from ncclscope.render.console.attach import render_attach
from ncclscope.render.console.terminal import plain_text
from ncclscope.ring.tombstone import page_of
from ncclscope.tracing.tracer import Tracer
from tests.support.cluster import Cluster
from tests.support.dumps import Job, history
from tests.support.snapshots import (
    DATA,
    elsewhere,
    in_collective,
    snapshot,
    stack,
    verdict_of,
    worker,
)

REDUCE, GATHER = in_collective("all_reduce", 10), in_collective("all_gather", 15)


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    for name in ("sleep", "mismatch", "loop"):
        seen = read_snapshot(DATA / f"h200_{name}.json")
        path = tmp_path / CAPTURE_FILE
        path.write_text(json.dumps(seen.to_dict()))
        assert read_snapshot(path) == seen


@pytest.mark.parametrize("ringed", [2, 1])
def test_dumps_beside_rings_are_of_the_same_ranks(tmp_path: Path, ringed: int) -> None:
    """As in a bundle of `attach --flight-recorder`; of rank 1 without a ring the dump is all."""
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.post((0, 1), "world")
    for tracer in cluster.tracers[ringed:]:
        Path(tracer.path).unlink()
    job = Job(2)
    history(job)
    job.write(tmp_path / "flight_recorder")
    run = open_run(tmp_path)

    both = ringed < 2
    assert {rank.details.get("format") == "flight_recorder" for rank in run.ranks} == {False, both}
    assert (run.dumped is None) is both
    if not both:
        assert [rank.rank for rank in run.ranks] == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"ncclscope_attach": 2}',
        '{"ncclscope_attach": 1, "workers": [{"rank": 1}, {"rank": 1}]}',
    ],
)
def test_what_is_no_capture_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / CAPTURE_FILE
    path.write_text(text)

    with pytest.raises(DamagedFileError):
        read_snapshot(path)
    with pytest.raises(InputError):
        open_run(tmp_path)


def test_hostile_values_do_no_harm(tmp_path: Path) -> None:
    hostile = {
        "ncclscope_attach": 1,
        "host": ["x"],
        "gap": float("inf"),
        "gpus": [[{"index": 1e9, "pids": ["x", -4]}], 3],
        "ras": {"comms": [{"ranks": [{"rank": -1, "counts": {"a": "b"}}]}], "text": 4},
        "workers": [
            {"rank": -3},
            {"rank": 2**80},
            {"rank": 0, "samples": 4, "stacks": [{"threads": [{"frames": [None, {"line": "x"}]}]}]},
            {"rank": 1, "world_size": 2**60, "stacks": [{"threads": [{"frames": [{}]}]}] * 2},
        ],
        "sources": [{"name": "\x1b[31m", "available": "yes"}],
    }
    (tmp_path / CAPTURE_FILE).write_text(json.dumps(hostile))
    verdict = diagnose(open_run(tmp_path))

    json.dumps(verdict.to_dict(), allow_nan=False)
    assert "\x1b" not in plain_text(render_attach(verdict, 80), 80)


def test_a_redacted_capture_keeps_what_the_verdict_needs() -> None:
    own = stack(
        "/home/alice/secret/train.py:1 <module>",
        "/home/alice/secret/train.py:15 step",
        "/opt/venv/site-packages/torch/distributed/distributed_c10d.py:3000 all_gather",
    )
    seen = snapshot(
        [
            replace(
                worker(rank, own if rank == 2 else REDUCE),
                title="python /home/alice/secret/train.py --token hunter2",
                environment={"MASTER_ADDR": "10.1.2.3", "LOCAL_RANK": str(rank)},
            )
            for rank in range(4)
        ],
        notes=("/home/alice/x.ring is torn",),
    )
    redacted = redact(seen)
    text = json.dumps(redacted.to_dict())

    for secret in ("alice", "hunter2", "10.1.2.3", "/opt", "secret"):
        assert secret not in text
    one, other = verdict_of(seen).cause, verdict_of(redacted).cause
    assert one is not None
    assert other is not None
    assert one.diverging_ranks == other.diverging_ranks == (2,)
    assert other.odd is not None
    assert other.odd.site == "train.py:15 step"


def test_rings_of_a_redacted_bundle_hold_no_command_line(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)
    for tracer in cluster.tracers:
        tracer.describe(argv=["python", "/home/alice/train.py"])
    run = open_run(cluster.directory)
    seen = with_snapshot(run, snapshot(worker(rank, REDUCE) for rank in range(4)))
    rings = tuple(sorted(cluster.directory.iterdir()))
    for redacted in (False, True):
        folder = tmp_path / f"bundle-{redacted}"
        assert write_bundle(folder, JobSample(seen, rings), {}, "", redacted=redacted) == []
        data = b"".join(map(unpacked, (folder / "rings").iterdir()))
        assert (b"alice" in data) != redacted
        verdict = diagnose(open_run(folder))
        assert verdict.cause is not None
        assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("op_mismatch", (2,))
        assert verdict.cause.confidence == "certain"
        assert verdict.coverage.complete  # redacted texts pass their checksums


def test_ranks_without_a_record_stay_known_in_bundles(tmp_path: Path) -> None:
    """Rank 3 is not recorded; where its stacks were read, it is a rank like any other."""
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.tracers[3].close()
    Path(cluster.tracers[3].path).unlink()
    about = {"rank": 3, "world_size": 4, "host": "vm", "pid": 77, "boot_id": "another"}
    page = page_of(about, "no ring can be created in /home/alice/rings")
    (cluster.directory / "x.untraced").write_bytes(page)
    run, rings = _read_rings([Path(tracer.path) for tracer in cluster.tracers[:3]])
    assert run is not None
    assert ([one.rank for one in run.untraced], len(rings)) == ([3], 3)
    seen = with_snapshot(run, snapshot(worker(rank, REDUCE) for rank in range(3)))
    assert (seen.missing, [one.rank for one in seen.untraced]) == ((3,), [3])
    every = with_snapshot(run, snapshot(worker(rank, REDUCE) for rank in range(4)))
    assert (every.missing, every.untraced) == ((), ())
    for redacted in (False, True):
        folder = tmp_path / f"bundle-{redacted}"
        assert write_bundle(folder, JobSample(seen, ()), {}, "", redacted=redacted) == []
        (copy,) = (folder / "rings").iterdir()
        assert (b"alice" in copy.read_bytes()) != redacted
        (one,) = open_run(folder).untraced
        assert (one.rank, one.pid) == (3, 77)


def test_a_redacted_bundle_names_files_without_folders(tmp_path: Path) -> None:
    tracers = [
        Tracer(tmp_path / "rings", rank=rank, world_size=2, heartbeat=False) for rank in (0, 1)
    ]
    for rank, tracer in enumerate(tracers):
        comm = tracer.communicator(
            "k", "tp:0", [0, 1], "gloo", created_at="/home/alice/jobs/train.py:3 main"
        )
        site = "/home/alice/site-packages/accelerate/ac.py:30 gather"
        for user in ("/home/alice/jobs/train.py:9 step", f"/home/alice/train.py:{rank} odd"):
            op = "all_gather" if rank and "odd" in user else "all_reduce"
            tracer.record(comm, op, shape=(4,), site=join(site, user))
        tracer.describe(unseen=[{"kind": "x", "text": "in /home/alice/x.py", "comms": []}])
    run = open_run(tmp_path / "rings")
    rings = tuple(sorted((tmp_path / "rings").iterdir()))
    seen = with_snapshot(run, snapshot(worker(rank, REDUCE) for rank in (0, 1)))
    document = diagnose(run).to_dict()
    assert "/home/alice/site-packages" in json.dumps(document)

    write_bundle(tmp_path / "bundle", JobSample(seen, rings), document, "", redacted=True)

    copies = [path for path in (tmp_path / "bundle").rglob("*") if path.is_file()]
    assert not any(b"alice" in unpacked(path) for path in copies)
    again = open_run(tmp_path / "bundle")
    (comm,) = again.communicators.values()
    assert comm.created_at == "train.py:3 main"
    for rank in again.ranks:
        calls = rank.logs["k"].span(1, 3)
        assert [call.full_site for call in calls] == ["ac.py:30 gather"] * 2
        assert [call.user_site for call in calls] == [
            "train.py:9 step",
            f"train.py:{rank.rank} odd",
        ]


def test_evidence_that_contradicts_the_rings_is_shown(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post([0, 1, 3], "tp:0", done=False)
    cluster.post([2], "tp:0", "all_gather", done=False)
    workers = [worker(rank, GATHER if rank == 1 else REDUCE) for rank in range(4)]
    verdict = diagnose(with_snapshot(open_run(cluster.directory), snapshot(workers)))

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (2,)
    (stacks,) = [item for item in verdict.evidence if item.name == "stacks"]
    assert (stacks.ranks, stacks.agrees) == ((1,), False)
    assert "DISAGREES" in plain_text(render_attach(verdict, 100), 100)


@pytest.mark.parametrize("odd", [0, 1])
def test_stacks_say_which_of_a_pair_waits_and_not_which_put_a_call_in(
    tmp_path: Path, odd: int
) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    for rank in cluster.everybody:
        for step in range(1, 9):
            cluster.tracers[rank].step(step, tokens=1)
            for _ in range(2 if (rank, step) == (odd, 6) else 1):
                cluster.post([rank], "dp:0", site="train.py:10 step", done=step < 8)
    workers = [worker(0, REDUCE), worker(1, elsewhere(20, "dequeue"))]
    verdict = diagnose(with_snapshot(open_run(cluster.directory), snapshot(workers, gap=12.0)))

    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.candidate_ranks) == ((), (0, 1))
    (stacks,) = [item for item in verdict.evidence if item.name == "stacks"]
    assert (stacks.ranks, stacks.agrees) == ((1,), True)


def test_ranks_outside_of_a_pair_do_not_decide_which_of_it_diverged(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history("world", op="barrier")
    for label, pair in (("pg-1a", (0, 1)), ("pg-2b", (2, 3))):
        cluster.history(label, members=pair)
    cluster.post((0, 1), "pg-1a", members=(0, 1))
    # Rank 2 has left out its pair's call, or rank 3 posts one in excess.
    cluster.post((3,), "pg-2b", members=(2, 3), done=False)
    cluster.post((0, 1, 2), "world", "barrier", done=False)
    workers = [*(worker(rank, in_collective("barrier", 15)) for rank in range(3))]
    seen = snapshot([*workers, worker(3, REDUCE)], gap=12.0)
    verdict = diagnose(with_snapshot(cluster.run(), seen))

    assert verdict.cause is not None
    assert (verdict.cause.diverging_ranks, verdict.cause.candidate_ranks) == ((), (2, 3))


@pytest.mark.parametrize(("cpu", "kind"), [(2.0, "late"), (0.0, "not_joined")])
def test_a_missing_rank_that_computes_is_late(tmp_path: Path, cpu: float, kind: str) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    workers = [*(worker(rank, REDUCE) for rank in range(3)), worker(3, elsewhere(20), cpu=cpu)]
    verdict = diagnose(with_snapshot(cluster.run(), snapshot(workers)))

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == (kind, (3,))
    assert "train.py:20 load" in verdict.cause.summary
    assert ("rank 3 is late, or in an endless loop" in verdict.cause.inferred) == (cpu > 0)


@pytest.mark.parametrize("always", [True, False])
def test_a_rank_that_was_stopped_in_all_samples_is_so_in_a_copy(
    tmp_path: Path, always: bool
) -> None:
    """A profiler stops it for a moment."""
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    odd = worker(3, elsewhere(20), state="T")
    if not always:
        odd = replace(odd, samples=(odd.samples[0], replace(odd.samples[1], state="S")))
    run = cluster.run()
    copied = replace(run, ranks=tuple(replace(rank, alive=None) for rank in run.ranks))
    verdict = diagnose(
        with_snapshot(copied, snapshot([*(worker(rank, REDUCE) for rank in range(3)), odd]))
    )

    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == (3,)
    assert ("a signal has stopped its process" in verdict.cause.summary) == always


def test_the_name_of_a_file_does_not_make_a_still_rank_late(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    still = worker(3, stack("train.py:1 <module>", "work.py:20 load"))
    workers = [*(worker(rank, REDUCE) for rank in range(3)), still]
    verdict = diagnose(with_snapshot(cluster.run(), snapshot(workers)))

    assert verdict.cause is not None
    assert "rank 3 is late, or in an endless loop" not in verdict.cause.inferred


def test_records_of_some_ranks_only_are_not_compared(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.history()
    workers = [worker(rank, REDUCE, GATHER) for rank in range(4)]
    verdict = diagnose(with_snapshot(open_run(cluster.directory), snapshot(workers)))

    assert verdict.cause is None
    assert any("2 of 4 processes were traced" in note for note in verdict.notes)


def test_nothing_is_wider_than_the_terminal() -> None:
    for name in ("sleep", "mismatch", "loop"):
        verdict = verdict_of(read_snapshot(DATA / f"h200_{name}.json"))
        for width in (80, 160):
            screen = plain_text(render_attach(verdict, width), width)
            assert max(map(len, screen.splitlines())) <= width


def test_c_frames_are_shown_where_they_were_read() -> None:
    screen = plain_text(render_attach(verdict_of(read_snapshot(DATA / "h200_mismatch.json")), 120))

    assert "C FRAMES" in screen
    assert "pt_nccl_watchdg" in screen


def test_a_capture_is_known_by_its_first_bytes_too() -> None:
    assert len(open_run(DATA / "h200_sleep.json").ranks) == 4


def test_a_snapshot_without_processes_is_reported() -> None:
    verdict = diagnose(with_snapshot(assemble([]), snapshot([])))

    assert verdict.cause is None
    assert plain_text(render_attach(verdict, 80), 80)


# --- Flight Recorder --------------------------------------------------------------------------


def job(tmp_path: Path) -> dict[str, str]:
    return {
        PIPE_VARIABLE: str(tmp_path / "fr_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_"),
    }


def test_a_dump_is_asked_for_through_the_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "fr_3.pipe"
    os.mkfifo(pipe)
    ready = threading.Event()

    def answer() -> None:  # as torch's watchdog does
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reader, True)  # it had to be opened before there was a writer
        ready.set()
        while not os.read(reader, 1):
            ready.wait(0.01)
        os.close(reader)
        (tmp_path / "dump_3").write_bytes(b"dump")

    thread = threading.Thread(target=answer)
    thread.start()
    ready.wait(10)
    found = ask_for_dump(job(tmp_path), 3, limit=20)
    thread.join(10)

    assert found == tmp_path / "dump_3"


def test_a_pipe_that_nobody_reads_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fr_0.pipe")

    assert ask_for_dump(job(tmp_path), 0) == f"no process reads {tmp_path / 'fr_0.pipe'}"


def test_what_is_no_pipe_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "fr_0.pipe").write_text("precious")

    assert ask_for_dump(job(tmp_path), 0) == f"{tmp_path / 'fr_0.pipe'} is not a FIFO"
    assert (tmp_path / "fr_0.pipe").read_text() == "precious"


def test_a_job_that_was_not_set_up_is_left_alone() -> None:
    found = ask_for_dump({}, 0)
    assert isinstance(found, str)
    assert PIPE_VARIABLE in found
