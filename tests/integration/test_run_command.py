"""`ncclscope run`: programs that know nothing of tracing."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import textwrap
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ncclscope import open_run
from tests.integration.c10d_ranks import ROOT, calls

RUN = (sys.executable, "-m", "ncclscope", "run")


def environment(**variables: str) -> dict[str, str]:
    path = [str(ROOT), str(ROOT / "patches"), str(ROOT / "analyzers")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **variables}


def run(
    rings: Path, *command: str, options: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, "--dir", str(rings), *options, "--", *command],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=100,
    )


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


PLAIN_PROGRAM = """
    import sys
    import torch
    import torch.distributed as dist
    from torch.distributed import all_reduce

    dist.init_process_group("gloo")
    all_reduce(torch.ones(3))
    dist.barrier()
    dist.destroy_process_group()
"""

MULTIPROCESSING_PROGRAM = """
    import multiprocessing
    import sys
    import tempfile

    def work(rank, meeting_point):
        import torch
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2
        )
        dist.all_reduce(torch.ones(5))
        dist.destroy_process_group()

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                context.Process(target=work, args=(rank, f"{folder}/store")) for rank in range(2)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
        sys.exit(sum(process.exitcode for process in processes))
"""


@pytest.mark.slow
def test_torchrun_is_traced(rings: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = write(tmp_path, "program.py", PLAIN_PROGRAM)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")

    completed = run(rings, *torchrun, "--standalone", program)

    assert completed.returncode == 0, completed.stderr
    assert "2 rings written" in completed.stderr
    assert f"ncclscope diagnose {rings}" in completed.stderr
    ranks = open_run(rings).ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        assert [call.op for call in calls(rank)] == ["all_reduce", "barrier"]
        assert calls(rank)[0].site == "program.py:8 <module>"
        assert rank.details["run"] == ranks[0].details["run"] != ""


@pytest.mark.parametrize("method", ["spawn", pytest.param("fork", marks=pytest.mark.slow)])
def test_multiprocessing_is_traced(rings: Path, tmp_path: Path, method: str) -> None:
    pytest.importorskip("torch")
    program = write(tmp_path, "program.py", MULTIPROCESSING_PROGRAM)

    completed = run(rings, sys.executable, program, method)

    assert completed.returncode == 0, completed.stderr
    for rank in open_run(rings).ranks:
        assert [call.shape for call in calls(rank)] == [(5,)]


@pytest.mark.slow
def test_nothing_is_traced_when_it_is_switched_off(rings: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = write(tmp_path, "program.py", MULTIPROCESSING_PROGRAM)

    completed = run(rings, sys.executable, program, "spawn", NCCLSCOPE="0")

    assert completed.returncode == 0, completed.stderr
    assert "NCCLSCOPE=0" in completed.stderr
    assert "no ring was written" in completed.stderr
    assert list(rings.iterdir()) == []


def test_a_misspelt_variable_gets_one_hint(rings: Path) -> None:
    plugin = "from ncclscope_patches.vllm.plugin import register; register()"
    done = run(rings, sys.executable, "-c", plugin, NCCLSCOPE_RECORD="4096")

    assert done.stderr.count("did you mean NCCLSCOPE_RECORDS?") == 1


def test_program_sees_the_directory_and_keeps_its_own_streams(rings: Path) -> None:
    program = (
        "import os, sys; print(os.environ['NCCLSCOPE_DIR']); "
        "print(os.environ['NCCL_SCOPE_DIR']); print(sys.stdin.read())"
    )
    link = rings / "link"
    link.symlink_to(rings, target_is_directory=True)
    completed = subprocess.run(
        [*RUN, "--dir", str(link), "--", sys.executable, "-c", program],
        env=environment(),
        input="given",
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert completed.stdout.splitlines() == [str(rings), str(rings), "given"]


def test_rings_go_to_a_new_private_folder_by_default() -> None:
    program = "import os; print(os.environ['NCCLSCOPE_DIR'])"
    completed = subprocess.run(
        [*RUN, sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    directory = Path(completed.stdout.strip())

    assert directory.parent.name == f"ncclscope-{os.getuid()}"
    assert not directory.exists()


RECORDING_PROGRAM = """
    import os, sys
    from ncclscope.tracing import session

    for path in (directory := os.environ["NCCLSCOPE_DIR"], os.path.dirname(directory)):
        assert os.stat(path).st_mode & 0o777 == 0o700
    tracer = session.current()
    tracer.record(tracer.communicator("k", "world", [0, 1]), "all_reduce", shape=(4,))
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("options", "status", "stay"),
    [((), 0, False), (("--no-explain",), 0, False), (("--keep",), 0, True), ((), 3, True)],
)
def test_rings_in_the_default_place_stay_after_a_failure_or_with_keep(
    options: tuple[str, ...], status: int, stay: bool, tmp_path: Path
) -> None:
    program = write(tmp_path, "program.py", RECORDING_PROGRAM)
    completed = subprocess.run(
        [*RUN, *options, "--", sys.executable, program, str(status)],
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert completed.returncode == status, completed.stderr
    (named,) = re.findall(r"rings go to (\S+)", completed.stderr)
    try:
        assert Path(named).exists() is stay
        assert (f"ncclscope diagnose {named}" in completed.stderr) is stay
        assert ("1 ring removed" in completed.stderr) is not stay
        assert "no ring was written" not in completed.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
    finally:
        shutil.rmtree(named, ignore_errors=True)


@pytest.mark.parametrize(
    ("ending", "status"),
    [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 128 + 9)],
)
def test_exit_status_is_that_of_the_program(rings: Path, ending: str, status: int) -> None:
    assert run(rings, sys.executable, "-c", f"import os, sys; {ending}").returncode == status


@pytest.mark.parametrize(
    ("command", "reason", "status"),
    [
        (["no-such-program-anywhere"], "cannot run no-such-program-anywhere: no such file", 127),
        (["./no-such-program"], "cannot run ./no-such-program: no such file", 127),
        (["/dev/null"], "cannot run /dev/null: permission denied", 126),
        (["/tmp"], "cannot run /tmp: permission denied", 126),
        ([], "no command to run", 2),
    ],
)
def test_command_that_cannot_run_is_reported_in_a_line(
    rings: Path, command: list[str], reason: str, status: int
) -> None:
    completed = run(rings, *command)

    assert completed.returncode == status
    last = completed.stderr.splitlines()[-1]
    assert reason in last
    assert "Traceback" not in completed.stderr


SIGNALLED_PROGRAM = """
    import signal, sys, time

    def handle(number, frame):
        seen.append(number)
        print(number, flush=True)
        if len(seen) == 3:
            sys.exit(5)

    seen = []
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    print("ready", flush=True)
    while True:  # not pause(): a signal that comes just before it is dealt with after it only
        time.sleep(0.05)
"""


def test_signals_are_passed_on(rings: Path, tmp_path: Path) -> None:
    program = write(tmp_path, "program.py", SIGNALLED_PROGRAM)
    process = subprocess.Popen(
        [*RUN, "--dir", str(rings), "--", sys.executable, program],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "ready\n"
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
            assert output.readline() == f"{int(number)}\n"

    assert process.wait(timeout=30) == 5


def test_signal_that_ends_the_program_is_its_exit_status(rings: Path, tmp_path: Path) -> None:
    program = "print('ready', flush=True); import signal; signal.pause()"
    process = subprocess.Popen(
        [*RUN, "--dir", str(rings), "--", sys.executable, "-c", program],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        output.readline()
        process.terminate()

    assert process.wait(timeout=30) == 128 + signal.SIGTERM


def test_another_sitecustomize_is_run_too(rings: Path, tmp_path: Path) -> None:
    write(tmp_path, "sitecustomize.py", "import builtins; builtins.HIDDEN = __file__")
    completed = run(
        rings,
        sys.executable,
        "-c",
        "import sitecustomize; print(HIDDEN, sitecustomize.__file__)",
        PYTHONPATH=os.pathsep.join([str(ROOT), str(tmp_path)]),
    )

    expected = str(tmp_path / "sitecustomize.py")
    assert completed.stdout.split() == [expected, expected]


def test_sitecustomize_that_fails_fails_as_ever(rings: Path, tmp_path: Path) -> None:
    write(tmp_path, "sitecustomize.py", "raise ValueError('of its own')")
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = (sys.executable, "-c", "print('started')")

    with_us = run(rings, *command, **variables)
    without = subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=60
    )

    assert with_us.stdout == without.stdout == "started\n"
    assert "of its own" in without.stderr
    assert without.stderr in with_us.stderr


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter in whose environment nothing of ours is installed."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def test_interpreter_without_ncclscope_can_be_traced(
    rings: Path, tmp_path: Path, other_python: Path
) -> None:
    """The package is found beside the bootstrap; the rest of our environment is not."""
    program = """
        import sys
        before = list(sys.path)
        import ncclscope, ncclscope_patches.registry
        from ncclscope.tracing import session
        tracer = session.current()
        comm = tracer.communicator("key", "world", [0, 1], "gloo")
        tracer.describe(rank=0, world_size=2)
        tracer.record(comm, "barrier")
        assert sys.path == before
        try:
            import ncclscope_analyzers
        except ImportError:
            print("nothing else")
    """
    completed = subprocess.run(
        [*RUN, "--dir", str(rings), "--", str(other_python), write(tmp_path, "p.py", program)],
        env=environment(PYTHONPATH=""),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert completed.stdout == "nothing else\n", completed.stderr
    (rank,) = open_run(rings).ranks
    assert [call.op for call in calls(rank)] == ["barrier"]


def test_bootstrap_does_nothing_where_it_cannot(tmp_path: Path, other_python: Path) -> None:
    """A copy without the package beside it acts as a package that cannot be read."""
    bootstrap = ROOT / "ncclscope" / "tracing" / "bootstrap" / "sitecustomize.py"
    lonely = tmp_path / "a" / "b" / "c" / "d"
    lonely.mkdir(parents=True)
    write(lonely, "sitecustomize.py", bootstrap.read_text())
    completed = subprocess.run(
        [str(other_python), "-c", "print('started')"],
        env=environment(PYTHONPATH=str(lonely), NCCLSCOPE_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (completed.stdout, completed.stderr) == ("started\n", "")


def test_python_without_torch_loads_nothing_of_ours_but_the_hook(rings: Path) -> None:
    program = (
        "import sys; print(*sorted(n for n in sys.modules if n.startswith(('ncclscope', 'log'))))"
    )
    completed: Any = run(rings, sys.executable, "-c", program)

    assert completed.stdout.split() == [
        "ncclscope_patches",
        "ncclscope_patches.importing",
        "ncclscope_patches.registry",
    ]


def test_ctrl_c_reaches_the_program_once(rings: Path, tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "program.py",
        """
        import signal, sys, time

        def interrupt(number, frame):
            seen.append(number)
            sys.stderr.write("seen\\n")

        seen = []
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(len(seen)))
        sys.stderr.write("ready\\n")
        while True:
            time.sleep(0.05)
        """,
    )
    terminal, other_end = pty.openpty()
    process = subprocess.Popen(
        [*RUN, "--dir", str(rings), "--", sys.executable, program],
        env=environment(),
        stdin=other_end,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(other_end)
    assert process.stderr is not None
    with process.stderr as output:
        while output.readline() != "ready\n":
            pass
        os.write(terminal, b"\x03")
        assert output.readline() == "seen\n"
        process.terminate()  # passed on after the first signal has been dealt with
    os.close(terminal)

    assert process.wait(timeout=30) == 1


@pytest.mark.parametrize(
    ("step", "alike"),
    [({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3"}, True), ({"SLURM_JOB_ID": "77"}, False)],
    ids=["tasks of a step", "a batch script"],
)
def test_tasks_of_a_slurm_step_are_one_run(
    tmp_path: Path, step: dict[str, str], alike: bool
) -> None:
    show = (sys.executable, "-c", "import os; print(os.environ['NCCLSCOPE_RUN'])")
    names = {
        run(tmp_path, *show, **step, SLURM_PROCID=str(rank)).stdout.strip() for rank in range(2)
    }

    assert "" not in names
    assert (len(names) == 1) is alike
