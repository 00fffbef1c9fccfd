"""Who is a worker, and which rank it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ncclscope import Tracer
from ncclscope.__main__ import main
from ncclscope.attach import processes
from ncclscope.attach.kinship import (
    group_jobs,
    meeting_points,
    with_ranks_below,
    without_relatives,
    without_supervisors,
)
from ncclscope.attach.processes import (
    Candidate,
    choose_job,
    describe,
    find_workers,
    give_ranks,
    left_out,
)
from ncclscope.attach.recorded import living_pids
from ncclscope.attach.titles import is_worker_title, parse_title, ranks_from_labels
from ncclscope.errors import UsageError
from ncclscope.model import Transfer
from ncclscope.ring.transfers import TransferTable


@pytest.mark.parametrize(
    "title",
    [
        "VLLM::Worker_DP1_TP0_EP2",
        "VLLM::Worker",
        "VLLM::Worker_TP0",
        "mine::Worker_PP1_TP3",
        "VLLM::EngineCore_DP1",
        "ray::RayWorkerWrapper.execute_method",
        "sglang::scheduler_TP1",
    ],
)
def test_titles_of_workers(title: str) -> None:
    assert is_worker_title(title)


@pytest.mark.parametrize(
    "title", ["VLLM::APIServer_0", "VLLM::DPCoordinator", "python worker.py", "Worker_TP0", "bash"]
)
def test_titles_of_others(title: str) -> None:
    assert not is_worker_title(title)


def test_parts_of_a_title() -> None:
    assert parse_title("VLLM::Worker_DP1_TP0_EP2") == {"dp": "1", "tp": "0", "ep": "2"}
    assert parse_title("VLLM::Worker") == {}
    assert parse_title("python train_TP2.py") == {}


def test_ranks_of_vllm_count_dp_slowest() -> None:
    titles = [
        f"VLLM::Worker_DP{dp}_PP{pp}_TP{tp}" for dp in (0, 1) for pp in (0, 1) for tp in (0, 1)
    ]
    assert ranks_from_labels([parse_title(title) for title in titles]) == list(range(8))
    assert ranks_from_labels([{"tp": "0"}, {"tp": "0"}]) is None


def worker(pid: int, title: str = "", **environment: str) -> Candidate:
    return Candidate(pid, title=title, environment=environment, python=True)


def ranks(*workers: Candidate, rings: dict[int, int] | None = None) -> list[tuple[int, int, str]]:
    return [(p.candidate.pid, p.rank, p.source) for p in give_ranks(workers, rings or {})]


def test_a_ring_is_believed_before_everything_else() -> None:
    found = ranks(worker(10, RANK="0"), worker(11, RANK="1"), rings={10: 1, 11: 0})
    assert found == [(11, 0, "ring"), (10, 1, "ring")]


def test_the_environment_is_believed_before_a_title() -> None:
    one = worker(10, "VLLM::Worker_TP0", RANK="5")
    other = worker(11, "VLLM::Worker_TP1", RANK="4")
    assert ranks(one, other) == [(11, 4, "RANK"), (10, 5, "RANK")]


def test_titles_are_enough() -> None:
    found = ranks(worker(10, "VLLM::Worker_DP1_TP0_EP2"), worker(11, "VLLM::Worker_DP0_TP1_EP1"))
    assert found == [(11, 1, "title"), (10, 2, "title")]


def test_a_local_rank_is_better_than_nothing() -> None:
    assert ranks(worker(10, LOCAL_RANK="1"), worker(11, LOCAL_RANK="0")) == [
        (11, 0, "LOCAL_RANK"),
        (10, 1, "LOCAL_RANK"),
    ]


def test_without_any_evidence_pids_are_numbered() -> None:
    assert ranks(worker(12), worker(10)) == [(10, 0, "pid"), (12, 1, "pid")]
    assert ranks(worker(12, RANK="0"), worker(10, RANK="0")) == [(10, 0, "pid"), (12, 1, "pid")]


def test_one_that_says_nothing_gets_what_is_left() -> None:
    found = ranks(worker(10, RANK="2"), worker(11), worker(12, RANK="0"))
    assert found == [(12, 0, "RANK"), (11, 1, "pid"), (10, 2, "RANK")]


def test_a_rank_that_is_no_number_is_none() -> None:
    assert ranks(worker(10, RANK="x"), worker(11, RANK="-1")) == [(10, 0, "pid"), (11, 1, "pid")]


# --- which of them are workers ----------------------------------------------------------------


def ranked(pid: int, rank: int, parent: int = 1, port: str = "29500", **fields: Any) -> Candidate:
    environment = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port}
    return Candidate(pid, parent=parent, environment=environment, python=True, **fields)


def chosen(*candidates: Candidate) -> list[int]:
    return [one.pid for one in choose_job(candidates)]


def test_ranks_are_workers_and_their_children_are_not() -> None:
    assert chosen(ranked(10, 0), ranked(11, 1), ranked(12, 0, parent=10)) == [10, 11]


def test_other_processes_are_no_workers() -> None:
    shell = Candidate(9, environment={"RANK": "0", "WORLD_SIZE": "2"})
    agent = ranked(8, 0, words=("python", "-m", "torch.distributed.run"))
    alone = Candidate(7, environment={"RANK": "0", "WORLD_SIZE": "1"}, python=True)
    assert chosen(shell, agent, alone, Candidate(6, python=True), ranked(10, 0)) == [10]


def test_an_engine_core_is_a_worker_only_where_it_has_none() -> None:
    core = Candidate(10, title="VLLM::EngineCore_DP0")
    workers = [Candidate(11 + tp, parent=10, title=f"VLLM::Worker_TP{tp}") for tp in (0, 1)]
    assert chosen(core, *workers) == [11, 12]
    assert chosen(core) == [10]


def test_the_server_that_started_engines_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads may communicate, and it has no title."""
    server = Candidate(9, title="python serve.py", python=True, communicates=True)
    core = Candidate(10, 9, "VLLM::EngineCore", python=True)
    workers = [
        Candidate(11 + n, 10, f"VLLM::Worker_TP{n}", ancestors=(9,), python=True) for n in range(2)
    ]
    known = {one.pid: one for one in (server, core, *workers)}
    monkeypatch.setattr(processes, "describe", known.__getitem__)
    monkeypatch.setattr(processes, "state_of", lambda pid: "S")

    assert [one.pid for one in processes.find_workers([*known])] == [11, 12]
    del known[11], known[12]
    assert [one.pid for one in processes.find_workers([*known])] == [10]


def test_a_process_with_a_ring_is_a_worker() -> None:
    assert chosen(Candidate(10, rings=("/dev/shm/x/a.ring",))) == [10]


def test_workers_of_two_jobs_are_not_mixed() -> None:
    with pytest.raises(UsageError) as error:
        choose_job([ranked(10, 0), ranked(11, 1), ranked(20, 0, port="29501")])
    assert "workers of 2 jobs run here" in str(error.value)
    assert "10 11 " in str(error.value)


def test_what_a_rank_has_started_is_none_however_deep() -> None:
    loader = ranked(12, 0, parent=11, ancestors=(10, 1))
    named = ranked(13, 0, parent=1, name="pt_data_worker")
    assert chosen(ranked(10, 0), loader, named, ranked(20, 1)) == [10, 20]


def test_children_of_ranks_are_none_without_a_rank_in_the_environment_either() -> None:
    ranks = [Candidate(10, python=True, communicates=True), Candidate(20, communicates=True)]
    children = [Candidate(11, parent=10, python=True), Candidate(21, parent=20)]
    assert without_relatives([*ranks, *children]) == ranks


def test_a_launcher_that_was_named_is_left_out() -> None:
    launcher = Candidate(9, words=("python", "-m", "torch.distributed.run", "train.py"))
    spawner = Candidate(8, python=True)
    ranks = [Candidate(pid, parent=8, python=True, communicates=True) for pid in (10, 11)]
    assert without_relatives([launcher, spawner, *ranks]) == ranks


def test_a_script_that_starts_ranks_is_left_out_whatever_shows_theirs() -> None:
    script = Candidate(9, parent=1, python=True, words=("python", "launch.py"))
    workers = [replace(ranked(pid, pid - 10, parent=9), ancestors=(1,)) for pid in (10, 11)]
    traced = [Candidate(pid, parent=9, rings=(f"/tmp/{pid}.ring",)) for pid in (10, 11)]
    titled = [Candidate(pid, parent=9, title=f"VLLM::Worker_TP{pid}") for pid in (10, 11)]

    for ranks in (workers, traced, titled):
        assert without_supervisors([script, *ranks]) == ranks
    assert without_supervisors([script]) == [script]


def test_what_may_be_a_rank_that_does_not_show_it_is_kept() -> None:
    first = Candidate(9, parent=1, python=True, communicates=True)
    late = Candidate(12, parent=9, python=True)
    variables = [ranked(10, 1, parent=9), late, first]
    rings = [Candidate(10, parent=9, rings=("/tmp/10.ring",)), late]

    assert without_supervisors(variables) == [variables[0], first]
    assert without_supervisors(rings) == rings


def test_the_ranks_that_a_launcher_has_started_replace_it() -> None:
    """Torchrun starts a script per RANK that spawns ranks with the same RANK."""
    agent = Candidate(8, parent=1, words=("python", "-m", "torch.distributed.run"), python=True)
    script = ranked(9, 0, parent=8)
    spawned = [ranked(pid, 0, parent=9, communicates=True) for pid in (10, 11)]
    loader = ranked(12, 0, parent=10, rings=("/tmp/10.ring",), name="pt_data_worker")
    below = {8: [script, *spawned, loader], 9: [*spawned, loader]}

    assert with_ranks_below([script], below.__getitem__) == spawned
    assert without_relatives(with_ranks_below([agent], below.__getitem__)) == spawned
    assert with_ranks_below([script, *spawned], below.__getitem__) == spawned
    assert with_ranks_below(spawned, below.__getitem__) == spawned


def test_a_rank_that_has_not_made_a_group_stays_beside_its_children() -> None:
    rank = ranked(9, 0)
    children = [ranked(10, 0, parent=9), Candidate(11, parent=9, python=True)]
    assert with_ranks_below([rank], lambda pid: children) == [rank]


STARTS_RANKS = """
import os, subprocess, sys
code = "import os, sys; os.write(1, str(os.getpid()).encode().ljust(9)); sys.stdin.read()"
for rank in "01":
    subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **VARIABLES, "RANK": rank})
os.wait()
"""


@pytest.mark.parametrize("shown", [True, False])
def test_of_a_named_launcher_the_note_names_what_it_started(shown: bool) -> None:
    variables = {"WORLD_SIZE": "2"}
    code = STARTS_RANKS.replace("VARIABLES", repr(variables))
    if not shown:
        code = code.replace('"RANK"', '"OTHER"')
    pipe = subprocess.PIPE
    clean = {k: v for k, v in os.environ.items() if "RANK" not in k and "SLURM_" not in k}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=clean, text=True) as launcher:
        assert launcher.stdout is not None
        started = sorted(int(launcher.stdout.read(9)) for _ in range(2))
        found = find_workers([launcher.pid])
        (note,) = left_out([launcher.pid], found)
        launcher.communicate()

    listed = " ".join(map(str, started))
    if shown:
        assert [one.pid for one in found] == started
        assert note == (
            f"process {launcher.pid} is no rank; what it started is sampled instead: {listed}"
        )
    else:
        assert [one.pid for one in found] == [launcher.pid]
        assert note == (
            f"process {launcher.pid} may be a launcher and no rank: name the ranks among what it "
            f"started, {listed}"
        )


def test_a_thread_of_ncclscope_run_is_no_communication() -> None:
    name = "open('/proc/self/comm', 'w').write('ncclscope'); print(flush=True); input()"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", name]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = describe(process.pid)
        process.communicate("\n")
    assert (found.name, found.communicates) == ("ncclscope", False)


NAP = "print(flush=True); input()"


def test_of_named_processes_those_without_a_rank_are_left_out_with_a_note() -> None:
    with ExitStack() as stack:
        pids = [stack.enter_context(napping(RANK=str(rank), WORLD_SIZE="2")) for rank in (0, 1)]
        supervisor = stack.enter_context(napping())
        found = find_workers([*pids, supervisor])
        note = left_out([*pids, supervisor], found)

    assert [one.pid for one in found] == pids
    assert note == (
        f"process {supervisor} is left out: no rank, but a launcher, an engine or a helper of "
        "the ranks",
    )
    assert left_out(pids, found) == ()


@contextmanager
def napping(**environment: str) -> Iterator[int]:
    """Yield the pid of a Python process with this environment."""
    pipe = subprocess.PIPE
    ranks = ("RANK", "SLURM_")
    clean = {k: v for k, v in os.environ.items() if not any(part in k for part in ranks)}
    command = [sys.executable, "-c", NAP]
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env={**clean, **environment}, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate("\n")


def test_what_is_the_only_one_is_kept() -> None:
    only = Candidate(9, name="pt_data_worker")
    assert without_relatives([only]) == [only]


def test_the_rank_that_has_started_all_others_is_one() -> None:
    first = Candidate(9, parent=1, python=True, communicates=True, words=("python", "train.py"))
    shell = Candidate(8, python=True, words=("python", "shell.py"))
    others = [replace(ranked(pid, pid - 9, parent=9), ancestors=(8, 1)) for pid in (10, 11)]
    assert chosen(first, shell, *others) == [10, 11, 9]


def server(pid: int, *words: str, **environment: str) -> Candidate:
    return Candidate(
        pid,
        title=f"VLLM::EngineCore_DP{pid % 10}",
        meeting=meeting_points(words),
        environment=environment,
    )


def test_servers_that_name_one_meeting_point_are_one_job() -> None:
    words = ["serve", "-dpr", "1", "--data-parallel-address=10.0.0.1", "-dpp", "13345"]
    four = [server(pid, *words, NCCLSCOPE_RUN=f"run {pid}") for pid in range(10, 14)]
    assert chosen(*four) == [10, 11, 12, 13]
    with pytest.raises(UsageError, match="workers of 2 jobs"):
        chosen(*four, server(15, *words[:-1], "13346"))


def test_a_command_line_of_no_words_names_no_meeting_point() -> None:
    assert meeting_points([]) == ""


def test_workers_that_share_a_communicator_are_one_job(tmp_path: Path) -> None:
    both, others = (
        [
            Candidate(pid, rings=(str(ring),), environment={"NCCLSCOPE_RUN": f"run {pid}"})
            for pid, ring in enumerate(recorded(tmp_path / str(first), first), first)
        ]
        for first in (10, 20)
    )
    assert chosen(*both) == [10, 11]
    with pytest.raises(UsageError, match="workers of 2 jobs"):
        chosen(*both, *others)


def recorded(directory: Path, seed: int) -> list[Path]:
    """Rings of two ranks with a communicator of their own."""
    found = []
    for rank in (0, 1):
        tracer = Tracer(directory, rank=rank, world_size=2)
        tracer.communicator(key=f"{seed:032x}", label="tp:0", ranks=[0, 1], backend="nccl")
        found.append(Path(tracer.path))
        tracer.close()
    return found


TALKER = """
import socket, sys
if sys.argv[1:]:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
else:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
print(flush=True)
sys.stdin.read()
"""


def talker(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TALKER, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def test_workers_that_are_connected_are_one_job() -> None:
    with talker() as one:
        assert one.stdout is not None
        with talker(one.stdout.readline().strip()) as other:
            assert other.stdout is not None
            one.stdout.readline(), other.stdout.readline()
            ends = ranked(one.pid, 0, port="1"), ranked(other.pid, 1, port="2")
            together = group_jobs(ends)
            alike = group_jobs([ends[0], ranked(other.pid, 0, port="2")])
            other.communicate()
        one.communicate()

    assert [len(job) for job in together] == [2]
    assert [len(job) for job in alike] == [1, 1], "two jobs that talk, such as servers"


def test_no_worker_at_all() -> None:
    with pytest.raises(UsageError, match="no worker was found"):
        choose_job([Candidate(10, python=True)])


TORCHRUN = (
    "python",
    "-m",
    "torch.distributed.run",
    "--nnodes",
    "2",
    "--rdzv-endpoint=node-1:29400",
)


def test_torchrun_without_a_worker_is_said_to_wait_for_nodes() -> None:
    with pytest.raises(UsageError) as raised:
        choose_job([Candidate(10, words=TORCHRUN, python=True), Candidate(11, python=True)])
    assert "torchrun (pid 10) has started none" in str(raised.value)
    assert "nnodes=2 rdzv-endpoint=node-1:29400" in str(raised.value)

    with pytest.raises(UsageError) as raised:
        choose_job(
            [Candidate(10, words=TORCHRUN, python=True), Candidate(11, parent=10, python=True)]
        )
    assert "torchrun" not in str(raised.value)


STARTS_ONE_THAT_SHOWS_NOTHING = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={})
print(child.pid, flush=True)
input()
child.communicate(b"\\n")
"""


def test_what_a_title_has_wiped_out_is_taken_from_the_parents() -> None:
    handed_down = {"NCCL_RAS_ADDR": "localhost:4321", "TORCH_FR_DUMP_TEMP_FILE": "/tmp/fr_"}
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE_THAT_SHOWS_NOTHING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **handed_down, "LOCAL_RANK": "3", "SLURM_NTASKS": "8"},
        text=True,
    )
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        found, own = describe(child).environment, describe(parent.pid).environment
    finally:
        parent.communicate("\n")

    assert handed_down.items() <= found.items()
    assert not found.keys() & {"LOCAL_RANK", "SLURM_NTASKS"}, "these are the parent's own"
    assert {**handed_down, "LOCAL_RANK": "3"}.items() <= own.items()


def engine_ring(directory: Path, engine: str, peer: str = "") -> Path:
    """Return the ring of an engine's only worker, with one transfer."""
    tracer = Tracer(directory, rank=0, world_size=1)
    table = TransferTable(tracer.ring.path, tracer.ring.geometry)
    table.put(
        Transfer(
            id="p1",
            engine=engine,
            direction="recv" if peer else "send",
            request="r1",
            peer=peer,
        )
    )
    tracer.close()
    return Path(tracer.path)


def test_servers_that_transfer_between_each_other_are_one_system(tmp_path: Path) -> None:
    engines = [
        ("prefill-0", ""),
        ("decode-0", "prefill-0"),
        ("prefill-1", ""),
    ]
    workers = [
        ranked(10 + n, 0, port=str(n), rings=(str(engine_ring(tmp_path / str(n), *names)),))
        for n, names in enumerate(engines)
    ]

    assert sorted([one.pid for one in job] for job in group_jobs(workers)) == [[10, 11], [12]]
    assert chosen(*workers[:2]) == [10, 11]
    with pytest.raises(UsageError, match="workers of 2 jobs"):
        chosen(*workers)


@pytest.mark.parametrize("named", [True, False])
def test_attach_says_that_the_processes_of_a_directory_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    """By its name or by NCCLSCOPE_DIR; it must not examine another job instead."""
    monkeypatch.setattr("ncclscope.attach.processes.psutil.pids", list)
    ended = subprocess.Popen(["sleep", "0"])
    ended.wait()
    tracer = Tracer(tmp_path, rank=0, world_size=2, heartbeat=False, details={"pid": ended.pid})
    tracer.close()
    monkeypatch.setenv("NCCLSCOPE_DIR", str(tmp_path))

    status = main(["attach", *([str(tmp_path)] if named else [])])

    assert status == 2
    said = capsys.readouterr().err
    assert f"processes that recorded into {tmp_path} have ended" in said
    assert f"ncclscope diagnose {tmp_path}" in said


def test_attach_finds_the_processes_that_record_into_a_directory(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path, rank=0, world_size=2, heartbeat=False)
    try:
        assert living_pids(tmp_path) == (os.getpid(),)
    finally:
        tracer.close()
