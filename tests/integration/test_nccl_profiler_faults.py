"""NCCL's profiler plugin in programs that fork, die, run out of space, or do the unexpected."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest

import ncclscope
from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from tests.support.nccl_programs import (
    MASK,
    PLUGIN_SOURCES,
    PROGRAMS,
    SOURCES,
    VERSIONS,
    Built,
    Program,
    call,
    comm,
    run,
)


def _ring(rings: Path) -> Path:
    (path,) = rings.glob("*.ring")
    return path


def _calls(path: Path) -> list[int]:
    """Return the number of calls on each communicator of a ring."""
    ring = RingFile(path)
    try:
        return [state.seq for _, state in sorted(ring.states.items())]
    finally:
        ring.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("variables", [{}, {"NCCLSCOPE": "0"}, {"NCCLSCOPE_NATIVE": "0"}])
def test_without_tracing_nccl_reports_nothing(
    nccl: Built, tmp_path: Path, version: int, variables: dict[str, str]
) -> None:
    directory = {"NCCLSCOPE_DIR": tmp_path / "rings"} if variables else {}
    program = Program(nccl, {**directory, **variables})
    assert program.ask(f"open {nccl.plugin} {version}", comm(0), call(), "final 0") == [0] * 4
    assert program.end() == (0, "")
    assert not (tmp_path / "rings").exists()


def test_the_synonym_of_the_directory_enables_it(nccl: Built, rings: Path) -> None:
    program = Program(nccl, {"NCCL_SCOPE_DIR": rings})
    assert program.ask(f"open {nccl.plugin} 5", comm(0))[-1] == MASK
    program.end()
    assert _ring(rings).exists()


def test_a_normal_exit_is_recorded_and_a_kill_is_not(nccl: Built, rings: Path) -> None:
    for rank, end in enumerate(["exit 0", "kill", "exit 1"]):
        run(nccl, [f"open {nccl.plugin} 5", comm(rank, 3), call(), end], NCCLSCOPE_DIR=rings)
    found = ncclscope.open_run(rings)
    assert [rank.exited for rank in found.ranks] == [True, False, True]


@pytest.mark.parametrize("kills", [8])
def test_a_kill_while_threads_record_leaves_a_readable_ring(
    nccl: Built, rings: Path, kills: int
) -> None:
    for number in range(kills):
        program = Program(nccl, {"NCCLSCOPE_DIR": rings, "NCCLSCOPE_RECORDS": 1024})
        comms = [comm(0, 2, at=at, hash=at + 1) for at in range(4)]
        program.ask(f"open {nccl.plugin} 5", *comms)
        program.send("threads 4 100000000 0")
        path = _ring(rings)
        while sum(_calls(path)) < 2000 + 500 * number:
            pass
        program.kill()
        rank = ncclscope.open_run(path).ranks[0]
        for log in rank.logs.values():
            # Reading them checks each signature against the running hash.
            calls = log.span(log.first, log.calls + 1)
            assert [call.seq for call in calls] == [*range(log.first, log.calls + 1)]
            assert {call.op for call in calls} <= {"all_reduce"}
        path.unlink()


def test_a_child_after_fork_leaves_its_parents_ring_alone(nccl: Built, rings: Path) -> None:
    lines = [f"open {nccl.plugin} 5", comm(0), call(), "fork"]
    child = [call(), comm(0, at=1, hash=2), call(at=1), call(at=1)]
    run(nccl, [*lines, *child, "parent", call(), call()], NCCLSCOPE_DIR=rings)
    assert sorted(_calls(path) for path in rings.glob("*.ring")) == [[2], [3]]


def test_a_plugin_that_nccl_unloads_goes_on_in_its_ring(nccl: Built, rings: Path) -> None:
    lines = [f"open {nccl.plugin} 5", comm(0), call(), "final 0", "close"]
    lines += [f"open {nccl.plugin} 5", comm(0, at=1, hash=2), call(at=1)]
    assert run(nccl, lines, NCCLSCOPE_DIR=rings) == (0, "")
    assert _calls(_ring(rings)) == [1, 1]


def test_communicators_beyond_the_rings_room_are_reported_unrecorded(
    nccl: Built, rings: Path
) -> None:
    lines = [f"open {nccl.plugin} 5"]
    lines += [f"init {at} {at + 1} 1 2 0" for at in range(layout.MAX_COMMS + 20)]
    lines += [f"repeat 3 call {at} AllReduce 1 ncclInt8 0" for at in range(layout.MAX_COMMS + 20)]
    assert run(nccl, lines, NCCLSCOPE_DIR=rings) == (0, "")
    held = _calls(_ring(rings))
    assert set(held) == {3}
    assert len(held) == layout.MAX_COMMS
    (entry,) = ncclscope.open_run(rings).ranks[0].details["unseen"]
    assert entry["kind"] == "full"


def test_without_a_place_there_is_one_line_and_the_program_goes_on(
    nccl: Built, rings: Path
) -> None:
    lines = [f"open {nccl.plugin} 5", comm(0), call(), comm(0, at=1, hash=2), call(at=1)]
    program = Program(nccl, {"NCCLSCOPE_DIR": rings})
    # A larger file is refused in each place, and the attempt would kill the process.
    resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    status, complained = program.end(*lines)
    assert status == 0
    assert [path.suffix for path in rings.iterdir()] == [".untraced"]
    assert complained.count("\n") == 1
    assert "NCCL's calls are not recorded in this process" in complained


def test_capacity_follows_the_environment(nccl: Built, rings: Path) -> None:
    lines = [f"open {nccl.plugin} 5", comm(0), "repeat 3000 " + call()]
    run(nccl, lines, NCCLSCOPE_DIR=rings, NCCLSCOPE_RECORDS=2048)
    (rank,) = ncclscope.open_run(rings).ranks
    assert (rank.records, rank.lost) == (2048, 952)


def test_the_process_is_described_without_its_secrets(nccl: Built, rings: Path) -> None:
    command = [nccl.program, "--api-key", "abc", "HF_TOKEN=def", "--url=https://me:ghi@host/x"]
    command += ["--max-num-batched-tokens", "8192", "sk-0123456789abcdef", "--path=/a/\u00e9"]
    forms = ["Authorization: Basic YWJjamts==", "x-api-key:jkl", '{"api_key":"jkl"}']
    forms += [
        "https://h/p?a=1&token=jkl",
        "--env=API_KEY=jkl",
        "sk-0123456789jklm=",
        "PGPASSWORD=jkl",
    ]
    options = "--http-auth abc --auth=abc --auth-type basic --no-auth off xai-0123456789jkl"
    command += options.split()
    subprocess.run(
        command + forms,
        input=f"open {nccl.plugin} 6\n{comm(1)}\n",
        env={**os.environ, "NCCLSCOPE_DIR": str(rings), "NCCLSCOPE_RUN": "r1", "SLURM_PROCID": "1"}
        | {"SLURM_NTASKS": "4"},
        text=True,
        check=True,
        capture_output=True,
    )
    ring = RingFile(_ring(rings))
    about = ring.about
    ring.close()
    assert about["argv"][1:7] == [
        *("--api-key", "***", "HF_TOKEN=***", "--url=***", "--max-num-batched-tokens", "8192")
    ]
    assert about["argv"][7] == "***"
    assert " ".join(about["argv"][9:17]) == (
        "--http-auth *** --auth=*** --auth-type basic --no-auth off ***"
    )
    assert about["argv"][17:] == [*["***"] * 4, "--env=***", "***", "PGPASSWORD=***"]
    assert not {"abc", "def", "ghi"} & set(json.dumps(about).replace('"', " ").split())
    assert (about["rank"], about["world_size"], about["run"]) == (1, 4, "r1")
    assert (about["versions"], about["recorder"]) == ({"nccl": "2.30.7"}, "nccl-plugin")
    for name in ("host", "pid", "boot_id", "pid_namespace", "start_ticks", "started_ns"):
        assert about[name]


@pytest.mark.parametrize(
    ("launched", "members", "identity"),
    [
        ({"RANK": 5, "WORLD_SIZE": 8}, (1, 2), (5, 8)),
        ({"OMPI_COMM_WORLD_RANK": 5, "OMPI_COMM_WORLD_SIZE": 8}, (1, 2), (5, 8)),
        ({"PMI_RANK": 5, "PMI_SIZE": 8}, (1, 2), (5, 8)),
        ({"SLURM_PROCID": 0, "SLURM_NTASKS": 1}, (1, 2), (1, 2)),
        ({}, (1, 2), (1, 2)),
    ],
)
def test_the_rank_is_the_launchers_or_nccls(
    nccl: Built,
    rings: Path,
    launched: dict[str, int],
    members: tuple[int, int],
    identity: tuple[int, int],
) -> None:
    run(nccl, [f"open {nccl.plugin} 5", comm(*members)], NCCLSCOPE_DIR=rings, **launched)
    ring = RingFile(_ring(rings))
    assert (ring.about["rank"], ring.about["world_size"]) == identity
    ring.close()


def test_a_larger_communicator_knows_more_about_the_rank(nccl: Built, rings: Path) -> None:
    lines = [f"open {nccl.plugin} 5", comm(0, 2), comm(3, 4, at=1, hash=2)]
    run(nccl, lines, NCCLSCOPE_DIR=rings)
    ring = RingFile(_ring(rings))
    assert (ring.about["rank"], ring.about["world_size"]) == (3, 4)
    ring.close()


def test_version_4_does_not_record_across_nodes(nccl: Built, rings: Path) -> None:
    # There it reports calls of CUDA graphs at each replay, and on some of the ranks only.
    lines = [f"open {nccl.plugin} 4", "init 0 7 2 4 0", call()]
    program = Program(nccl, {"NCCLSCOPE_DIR": rings})
    assert program.ask(*lines)[-1] == 0
    program.end()
    assert list(rings.glob("*.ring")) == []


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_callbacks_in_any_order(tmp_path: Path, rings: Path, sanitizer: str) -> None:
    program = tmp_path / "fuzz"
    flags = ["-std=c11", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}", "-Wno-tsan"]
    flags.append("-fno-sanitize-recover=all")
    fuzz = PROGRAMS.parent / "profiler_fuzz.c"
    built = subprocess.run(
        ["gcc", *flags, f"-I{SOURCES}", fuzz, *PLUGIN_SOURCES, "-o", program],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in built.stderr:
        pytest.skip(f"this compiler has no -fsanitize={sanitizer}")
    assert built.returncode == 0, built.stderr
    # ThreadSanitizer cannot place its memory where the kernel randomizes all of it.
    command = ["setarch", "-R", str(program), "2"]
    done = subprocess.run(
        command,
        env={**os.environ, "NCCLSCOPE_DIR": str(rings)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [ncclscope.open_run(path) for path in rings.glob("*.ring")]
    assert sum(rank.records for run in found for rank in (*run.ranks, *run.others)) > 1000
