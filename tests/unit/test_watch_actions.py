"""What a watch does about a hang, and the file that it keeps for Prometheus."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclscope import open_run, procfs
from ncclscope.errors import UsageError
from ncclscope.readers.ring.cursor import RingCursor
from ncclscope.watch.actions import Actions, keep_bundle, kill
from ncclscope.watch.poll import Poll
from ncclscope.watch.textfile import metrics_text, write_textfile
from ncclscope.watch.watch import Watcher
from tests.support.programs import ROOT
from tests.support.rings import tracer_in

WORKER = """
import sys
from tests.support.rings import post, tracer_in
tracer = tracer_in(sys.argv[1], rank=1, world_size=2)
post(tracer, tracer.communicator("k", "tp:0", [0, 1]), 1)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def worker(rings: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(rings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def poll(rings: Path) -> Poll:
    """Two ranks that have diverged."""
    for rank in (0, 1):
        tracer = tracer_in(rings, rank=rank, world_size=2)
        comm = tracer.communicator("k", 'tp:0"\n\\', [0, 1])
        tracer.record(comm, "all_reduce", shape=(4 + rank,), dtype="int8", site="f.py:1 f")
        tracer.record(comm, "send", shape=(4,), peer=1 - rank)
    return Watcher(rings).poll()


def words_in(directory: Path) -> list[RingCursor]:
    return [RingCursor(path) for path in sorted(directory.glob("*.ring"))]


def test_a_worker_is_killed(rings: Path, worker: subprocess.Popen[str]) -> None:
    assert kill(words_in(rings)) == (worker.pid,)
    assert worker.wait(10) == -signal.SIGKILL
    assert kill(words_in(rings)) == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_ring_of_another_user_kills_nobody(rings: Path, worker: subprocess.Popen[str]) -> None:
    (ring,) = rings.glob("*.ring")
    os.chown(ring, 12345, 12345)

    assert kill(words_in(rings)) == ()
    assert worker.poll() is None


@pytest.mark.parametrize(
    "claimed",
    [
        {"start_ticks": 1},
        {"boot_id": "another boot"},
        {"boot_id": ""},
        {"pid_namespace": 1},
        {"start_ticks": None},
    ],
)
def test_a_process_that_only_has_the_pid_is_not(
    rings: Path, worker: subprocess.Popen[str], claimed: dict[str, object], tmp_path: Path
) -> None:
    """The ring's process has ended, and its pid was given to another one since."""
    truth = {"pid": worker.pid, "start_ticks": procfs.start_ticks(worker.pid)}
    tracer_in(tmp_path, rank=1, details=truth | claimed)

    assert kill(words_in(tmp_path)) == ()
    assert worker.poll() is None

    tracer_in(tmp_path, rank=1, details=truth)  # and it is for that reason alone
    assert kill(words_in(tmp_path)) == (worker.pid,)


def test_neither_ourselves_nor_nobody_is_killed(rings: Path) -> None:
    tracer_in(rings, rank=0)
    tracer_in(rings, rank=1, details={"pid": 0})
    tracer_in(rings, rank=2, details={"pid": 1, "start_ticks": procfs.start_ticks(1)})
    tracer_in(rings, rank=3, details={"pid": -5})

    assert kill(words_in(rings)) == ()


@pytest.mark.slow
def test_a_bundle_holds_rings_and_verdict(poll: Poll, tmp_path: Path) -> None:
    assert poll.verdict is not None
    bundle = keep_bundle(tmp_path / "new" / "bundles", poll.ranks, poll.verdict)
    poll.ranks[0].path.unlink()
    second = keep_bundle(tmp_path / "new" / "bundles", poll.ranks, poll.verdict)

    assert bundle != second
    assert bundle.name.endswith("-size_mismatch")
    # Not what was seen of this process besides, which may hold rings of other tests.
    assert [rank.rank for rank in open_run(bundle / "rings").ranks] == [0, 1]
    assert len(list((second / "rings").iterdir())) == 1
    document = json.loads((bundle / "verdict.json").read_text())
    assert document["verdict"]["kind"] == "size_mismatch"


def test_the_command_receives_verdict_and_variables(poll: Poll, tmp_path: Path) -> None:
    given = tmp_path / "given"
    command = (
        f'cat > {given}; echo "$NCCLSCOPE_STATUS $NCCLSCOPE_KIND $NCCLSCOPE_BUNDLE" >> {given}'
    )

    done = Actions(tmp_path / "bundles", command).act(poll)

    document, line = _split(given.read_text())
    assert json.loads(document)["status"] == "diverged"
    assert line == f"diverged size_mismatch {done.bundle}"
    assert done.killed == ()


def _split(text: str) -> tuple[str, str]:
    document, _, line = text.rpartition("}")
    return document + "}", line.strip()


def test_what_fails_is_reported_and_the_rest_is_done(poll: Poll, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    done = Actions(tmp_path / "file" / "bundles", "exit 3", kill=True).act(poll)

    assert done.bundle is None
    assert "the bundle could not be written" in done.messages[0]
    assert done.messages[1:] == ("--on-hang exited with status 3", "no worker was left to kill")
    with pytest.raises(UsageError, match="bundles cannot be written to"):
        Actions(tmp_path / "file" / "bundles").check()


LINE = re.compile(r'([a-z0-9_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def test_the_text_is_what_prometheus_reads(poll: Poll, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    text = metrics_text(poll, troubles=1, now=1_700_000_123.0)

    assert text.endswith("\n")
    typed, samples = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in typed
            typed[name] = kind
        elif not line.startswith("# HELP "):
            found = LINE.fullmatch(line)
            assert found is not None, line
            assert found[1] in typed, "a sample comes after its type"
            labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
            assert labels["slurm_job_id"] == "77"
            samples[(found[1], *sorted(labels.items()))] = float(found[3])
    assert {"ncclscope_status", "ncclscope_calls_total", "ncclscope_lag_calls"} <= typed.keys()
    status = {
        dict(key[1:])["status"]: value for key, value in samples.items() if "_status" in key[0]
    }
    assert status == {"ok": 0, "diverged": 1, "hung": 0, "incomplete": 0, "unknown": 0}
    calls = [dict(key[1:]) for key in samples if key[0] == "ncclscope_calls_total"]
    assert [one["rank"] for one in calls] == ["0", "1"]
    assert calls[0]["comm_name"] == 'tp:0\\"\\\\n\\\\'
    assert samples["ncclscope_looked_seconds", ("slurm_job_id", "77")] == 1_700_000_123
    assert (calls[0]["nranks"], calls[0]["n_nodes"]) == ("2", "1")
    assert all(value == 1 for key, value in samples.items() if key[0].endswith("p2p_calls_total"))


def test_the_file_is_replaced_and_never_half_written(poll: Poll, tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    write_textfile(path, poll, troubles=0, now=1.0)
    with path.open() as old:
        write_textfile(path, poll, troubles=9, now=2.0)
        assert "ncclscope_troubles_total" in old.read()  # whole, and not touched

    assert os.listdir(tmp_path) == ["job.prom"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert re.search(r"^ncclscope_troubles_total\{.*\} 9$", path.read_text(), re.M)
    with pytest.raises(OSError, match=r"job\.prom"):
        write_textfile(tmp_path / "absent" / "job.prom", poll, troubles=0, now=1.0)


def test_the_dashboard_asks_for_metrics_and_labels_that_exist(poll: Poll) -> None:
    board = json.loads((ROOT / "examples" / "grafana" / "dashboard.json").read_text())
    text = metrics_text(poll, troubles=1, now=1.0)
    known = set(re.findall(r"^# TYPE (\S+)", text, re.M)) | {"ncclscope_in_call"}
    labels = set(re.findall(r'([a-z_]+)="', text)) | {"collective"}

    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [entry["query"] for entry in board["templating"]["list"] if entry["type"] == "query"]
    named = [target["legendFormat"] for panel in board["panels"] for target in panel["targets"]]
    for expression in asked:
        assert set(re.findall(r"ncclscope_[a-z0-9_]+", expression)) <= known
        assert set(re.findall(r"([a-z_]+)(?:=|!=|=~)\"", expression)) <= labels
    assert len(asked) == 10
    assert set(re.findall(r"\{\{([a-z_]+)\}\}", " ".join(named))) <= labels
    readme = (ROOT / "examples" / "grafana" / "README.md").read_text()
    assert set(re.findall(r"^\| `(ncclscope_[a-z0-9_]+)", readme, re.M)) <= known
