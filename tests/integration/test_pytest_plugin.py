"""`pytest --ncclscope`, as a project that uses it sees it."""

from __future__ import annotations

import os
import sys

import psutil
import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.readers import open_run
from tests.support import fork_server

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(180)

FUNCTIONS = """
import os
import signal

import pytest


def group():
    import torch
    import torch.distributed as dist

    return torch, dist


def healthy(rank, count=3):
    torch, dist = group()
    tensor = torch.ones(4)
    for _ in range(count):
        dist.all_reduce(tensor)
    print("I am", rank)
    return tensor[0].item()


def skipping(rank):
    torch, dist = group()
    for step in range(6):
        if (rank, step) != (2, 4):
            dist.all_reduce(torch.ones(4))
        dist.all_gather([torch.empty(4) for _ in range(4)], torch.ones(4))
"""


def run(pytester: pytest.Pytester, tests: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=FUNCTIONS + tests)
    done = fork_server.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return pytest.RunResult(done.returncode, done.stdout.split("\n"), done.stderr.split("\n"), 0.0)


def test_ranks_that_agree_pass_and_return_what_they_return(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.collective_parity(ranks=4)
def test_sum(run_ranks):
    extra = 5
    assert run_ranks(lambda rank: (rank, healthy(rank, count=2), extra)) == [
        (rank, 16.0, 5) for rank in range(4)
    ]
""",
        "--ncclscope",
        "--strict-markers",
    )

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*ranks were run and compared once*"])


def test_a_hang_ends_with_one_verdict_and_leaves_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(pytester.path / "tmp"))
    # There pytest repeats whole messages in its summary, which would be a screen for each.
    monkeypatch.setenv("CI", "true")
    result = run(
        pytester,
        """
@pytest.mark.collective_parity(ranks=4, stall_after=1)
def test_hang(run_ranks):
    run_ranks(skipping)
""",
        "--ncclscope",
        "--ncclscope-dir=kept",
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "Nothing was recorded for 1 s: ranks 0-3 did not return.",
            "*DIVERGED*missing call*rank 2*",
            "*Rank 2 (*) came to all_gather*",
            "*at test_it.py:* skipping*",
            "FAILED test_it.py::test_hang - Rank 2 (*) came to all_gather*skipped that call*",
        ]
    )
    assert result.stdout.str().count("DIVERGED · missing call · rank 2") == 1
    assert "Traceback" not in result.stdout.str()
    assert len(list((pytester.path / "kept").glob("*/*.ring"))) == 4
    assert list((pytester.path / "tmp").iterdir()) == []
    here = str(pytester.path)
    left = [p.pid for p in psutil.process_iter() if here in _command(p) and p.pid != os.getpid()]
    assert left == []


def test_ranks_that_do_not_return_are_never_ok_and_their_lines_are_named(
    pytester: pytest.Pytester,
) -> None:
    result = run(
        pytester,
        """
def stuck(rank, both):
    import threading
    torch, dist = group()
    dist.barrier()
    if both or rank:
        threading.Event().wait()
    dist.barrier()


@pytest.mark.collective_parity(ranks=2, stall_after=60, timeout=8)
def test_lock(run_ranks):
    run_ranks(stuck, False)


@pytest.mark.collective_parity(ranks=2, stall_after=1)
def test_both(run_ranks):
    run_ranks(stuck, True)
""",
        "--ncclscope",
        "--ncclscope-dir=kept",
    )

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "Not over after 8 s: ranks 0 1 did not return.",
            "*HUNG · not joined*",
            "*it is at test_it.py:* stuck*",
            "Nothing was recorded for 1 s: ranks 0 1 did not return.",
            "*UNKNOWN*",
            "*Ranks 0 1 did not return*",
            "*test_it.py:* stuck*",
        ]
    )
    assert "─  OK  ─" not in result.stdout.str()
    kept = [diagnose(open_run(path)).status for path in (pytester.path / "kept").iterdir()]
    assert kept == ["unknown", "unknown"]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join([process.cwd(), *process.cmdline()])
    except (psutil.Error, OSError):
        return ""


def test_an_exception_is_shown_with_its_rank(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def failing(rank):
    healthy(rank)
    value = rank * 2
    assert value != 2, "two is wrong"
    healthy(rank)


@pytest.mark.collective_parity(ranks=3)
def test_raises(run_ranks):
    run_ranks(failing)


@pytest.mark.collective_parity(ranks=2)
def test_dies(run_ranks):
    run_ranks(lambda rank: os.kill(os.getpid(), signal.SIGKILL) if rank else healthy(rank))
""",
        "--ncclscope",
    )

    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "Rank 1 of 3: AssertionError: two is wrong*",
            "Rank 1 raised:",
            '*assert value != 2, "two is wrong"',
            "--- rank 2 ---",
            "I am 2",
            "Rank 1 of 2: its process was killed by SIGKILL*",
        ]
    )
    assert "rank_process.py" not in result.stdout.str()


def test_a_baseline_is_stored_compared_and_shown_when_it_differs(
    pytester: pytest.Pytester,
) -> None:
    source = """
@pytest.mark.collective_parity(ranks=2, baseline="calls/sum.lock")
def test_sum(run_ranks):
    run_ranks(healthy, {count})
"""
    missing = run(pytester, source.format(count=3), "--ncclscope")
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*does not exist; write it with: pytest --ncclscope-update"])

    run(pytester, source.format(count=3), "--ncclscope-update").assert_outcomes(passed=1)
    lock = pytester.path / "calls" / "sum.lock"
    assert lock.read_text().endswith(
        "section  # ranks 0 1\n  repeat 3\n    world all_reduce sum [4] float32\n"
    )
    run(pytester, source.format(count=3), "--ncclscope").assert_outcomes(passed=1)

    changed = run(pytester, source.format(count=4), "--ncclscope")
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(
        [
            "baseline: not the same calls*",
            "+ world all_reduce sum [[]4[]] float32",
            "*store it with pytest --ncclscope-update.",
        ]
    )


@pytest.mark.slow
def test_two_programs_cannot_store_one_baseline(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.collective_parity(ranks=2, baseline="sum.lock")
def test_sum(run_ranks, count):
    run_ranks(healthy, count)
""",
        "--ncclscope-update",
    )

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*give each program a baseline of its own*"])


TWO_PROGRAMS = """
from pathlib import Path


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.collective_parity(ranks=2, baseline="sum.lock")
def test_sum(run_ranks, count):
    run_ranks(healthy, count)
    # Until the other worker has begun, too, or one would do both.
    Path(f"begun-{count}").touch()
    deadline = time.monotonic() + 60
    while not Path(f"begun-{3 - count}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_workers_of_xdist_are_one_session(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = run(pytester, "import time\n" + TWO_PROGRAMS, "--ncclscope-update", "-n2")

    # Each worker has stored its own, and no test can know: the session fails.
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "ranks were run and compared 2 times",
            "stored: *sum.lock",
            "ERROR *was just stored for*give each program a baseline of its own",
        ]
    )


@pytest.mark.slow
def test_workers_of_xdist_do_not_meet(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = run(
        pytester,
        """
@pytest.mark.parametrize("count", range(1, 5))
@pytest.mark.collective_parity(ranks=2)
def test_sum(run_ranks, count):
    run_ranks(healthy, count)


@pytest.mark.parametrize("which", "ab")
@pytest.mark.collective_parity(ranks=4, stall_after=1)
def test_hang(run_ranks, which):
    run_ranks(skipping)
""",
        "--ncclscope",
        "--ncclscope-dir=kept",
        "-n2",
    )

    result.assert_outcomes(passed=4, failed=2)
    result.stdout.fnmatch_lines(["ranks were run and compared 4 times"])
    assert result.stdout.str().count("DIVERGED · missing call · rank 2") == 2
    for which in "ab":
        kept = pytester.path / "kept" / f"test_it.py-test_hang-{which}-"
        assert len(list(kept.glob("*.ring"))) == 4


@pytest.mark.slow
def test_rings_that_are_kept_are_those_of_the_last_failure(pytester: pytest.Pytester) -> None:
    source = """
@pytest.mark.collective_parity(ranks=4, stall_after=1)
def test_hang(run_ranks):
    run_ranks(skipping)
"""
    for _ in range(2):
        run(pytester, source, "--ncclscope", "--ncclscope-dir=kept").assert_outcomes(failed=1)

    assert len(list((pytester.path / "kept" / "test_it.py-test_hang").glob("*.ring"))) == 4


@pytest.mark.slow
def test_without_the_option_ranks_run_and_nothing_is_recorded(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.collective_parity(ranks=2, baseline="none.lock")
def test_sum(run_ranks):
    assert run_ranks(lambda rank: (healthy(rank), os.environ.get("NCCLSCOPE_DIR"))) == [
        (8.0, None)
    ] * 2


@pytest.mark.collective_parity(ranks=2)
def test_marker_alone():
    pass


@pytest.mark.collective_parity(ranks=2, timeout=3)
def test_hang(run_ranks):
    run_ranks(lambda rank: healthy(rank, 2 + rank))
""",
        "--strict-markers",
    )

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["Not over after 3 s: rank 1 did not return, rank 0 did.", "Run pytest with --ncclscope*"]
    )


@pytest.mark.parametrize(
    ("marker", "complaint"),
    [
        ("ranks=0", "ranks must be more than 0"),
        ("ranks='4'", "ranks='4' has the wrong type"),
        ("backend='smoke'", "give one of gloo, nccl"),
        ("rank=4", "has wrong arguments"),
        ("start_method='thread'", "give one of fork, spawn"),
    ],
)
def test_a_wrong_marker_says_so(pytester: pytest.Pytester, marker: str, complaint: str) -> None:
    result = run(
        pytester,
        f"""
@pytest.mark.collective_parity({marker})
def test_sum(run_ranks):
    run_ranks(healthy)
""",
        "--ncclscope",
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{complaint}*"])


@pytest.mark.slow
def test_a_test_that_all_ranks_skip_is_skipped(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def skip(rank, ranks):
    if rank in ranks:
        pytest.skip("no fast network")
    healthy(rank)


@pytest.mark.collective_parity(ranks=2, baseline="none.lock")
def test_all(run_ranks):
    run_ranks(skip, [0, 1])
    raise AssertionError("is not reached")


@pytest.mark.collective_parity(ranks=3, stall_after=1)
def test_some(run_ranks):
    run_ranks(skip, [1])
""",
        "--ncclscope",
        "-rs",
    )

    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "Rank 1 skipped the test (no fast network) and ranks 0 2 did not: that is a "
            "divergence, skip on all ranks or on none.",
            "*dead rank*rank 1*",
            "*ended without this call (it exited normally)*",
            "SKIPPED * test_it.py:*: no fast network",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_spawned_ranks_import_the_test(pytester: pytest.Pytester, mode: str) -> None:
    result = run(
        pytester,
        """
@pytest.mark.collective_parity(ranks=2, start_method="spawn")
def test_sum(run_ranks):
    assert run_ranks(healthy) == [8.0, 8.0]


@pytest.mark.collective_parity(ranks=2, start_method="spawn")
def test_closure(run_ranks):
    run_ranks(lambda rank: healthy(rank))


@pytest.mark.collective_parity(ranks=512, backend="nccl")
def test_gpus(run_ranks):
    run_ranks(healthy)
""",
        "--ncclscope",
        f"--import-mode={mode}",
    )

    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["start_method='spawn' needs a function*", "*nccl*"])
    assert "Traceback" not in result.stdout.str()


def test_a_marker_without_the_fixture_says_so(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.collective_parity(ranks=2)
def test_nothing():
    pass
""",
        "--ncclscope",
    )

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*does nothing for a test without the fixture run_ranks*"])


def test_pytest_starts_without_what_takes_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
def test_modules():
    import sys

    assert "ncclscope.pytest_plugin" in sys.modules
    heavy = {"numpy", "torch", "rich", "pandas", "hypothesis", "ncclscope.model"}
    assert heavy & sys.modules.keys() == set()
"""
    )
    result = pytester.runpytest_subprocess("--ncclscope", "-p", "no:hypothesispytest", timeout=100)

    result.assert_outcomes(passed=1)
