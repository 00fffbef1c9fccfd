"""pytest plugin that fails a test whose ranks diverge, with the verdict as the failure's text.

    @pytest.mark.collective_parity(ranks=4, baseline="dispatch.lock")
    def test_dispatch(run_ranks):
        run_ranks(dispatch, [3, 0, 1, 2])        # dispatch(rank, [3, 0, 1, 2]) in 4 processes

``pytest --ncclscope`` records and compares the calls of the processes. Without it they run all the
same, untraced. This module imports nothing slow at the top: pytest loads it in every project of the
environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ncclscope.engine.verdict import Verdict
    from ncclscope.parity.trial import Settings, Trial

MARKER = "collective_parity"
_USAGE = (
    f"{MARKER}(ranks=2, backend='gloo', baseline=None, ignore_shapes=False, stall_after=10, "
    f"timeout=120, start_method=None): how the fixture run_ranks runs a function in several "
    f"processes, and the file that holds the calls they should make"
)
_NARROWEST, _WIDEST = 80, 120
_FILE_NAME = re.compile(r"[^\w.-]+")


class _Session:
    """State of one pytest session.

    Attributes:
        item: Running test.
        summary: Summary of its failure in one line.
        runs: Number of functions that were run under tracing.
        stored: By path of a baseline to store, the test.
        written: Paths of those that have changed.
        conflicts: Messages on baselines that two workers stored with different calls.
    """

    def __init__(self) -> None:
        self.item: pytest.Item | None = None
        self.summary = ""
        self.runs = 0
        self.stored: dict[str, str] = {}
        self.written: set[str] = set()
        self.conflicts: list[str] = []


_SESSION = pytest.StashKey[_Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("ncclscope", "parity of collectives across ranks")
    group.addoption(
        "--ncclscope",
        action="store_true",
        help="record the collectives of the fixture run_ranks and fail if ranks disagree",
    )
    group.addoption(
        "--ncclscope-update",
        action="store_true",
        help="store the recorded sequences in the tests' baselines (turns --ncclscope on)",
    )
    group.addoption(
        "--ncclscope-dir",
        type=Path,
        metavar="DIR",
        help="keep the rings of failed tests in DIR, for `ncclscope diagnose`",
    )
    parser.addini("ncclscope", "the same as --ncclscope", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, whether or not tracing is on."""
    config.addinivalue_line("markers", _USAGE)
    config.stash[_SESSION] = _Session()


def _enabled(config: pytest.Config) -> bool:
    options = ("--ncclscope", "--ncclscope-update")
    return any(config.getoption(name) for name in options) or bool(config.getini("ncclscope"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Remember the running test."""
    session = item.config.stash[_SESSION]
    session.item = item
    session.summary = ""
    try:
        return (yield)
    finally:
        session.item = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test whose marker has no effect."""
    if (
        _enabled(item.config)
        and item.get_closest_marker(MARKER) is not None
        and "run_ranks" not in getattr(item, "fixturenames", ())
    ):
        pytest.fail(
            f"{MARKER} does nothing for a test without the fixture run_ranks", pytrace=False
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add hypothesis's example to the report, and shorten the summary to one line per test.

    A failure without a traceback would lack the example, and if CI is set, pytest repeats the whole
    message, here a screen, in its summary.
    """
    report = yield
    error = call.excinfo.value if call.excinfo is not None else None
    if (
        not isinstance(error, pytest.fail.Exception)
        or error.pytrace
        or "run_ranks" not in getattr(item, "fixturenames", ())
    ):
        return report
    notes = "\n".join(getattr(error, "__notes__", ()))
    # Not by isinstance: the classes are not public.
    add: Callable[[str, str], None] | None = getattr(report.longrepr, "addsection", None)
    if notes and add is not None:
        add("Example", notes)
    crash = getattr(report.longrepr, "reprcrash", None)
    summary = item.config.stash[_SESSION].summary
    if summary and crash is not None:
        crash.message = summary
    return report


@pytest.fixture(scope="session")
def run_ranks(pytestconfig: pytest.Config) -> Callable[..., list[Any]]:
    """Run a function as several ranks, in real processes that share a process group.

    run_ranks(function, *arguments, **keywords) calls function(rank, *arguments, **keywords) in
    each process and returns their results. The marker collective_parity sets the number of ranks.
    """

    # A session fixture, since its only state is the running test: for a function fixture
    # hypothesis would warn that examples share its state.
    def run(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        __tracebackhide__ = True
        return _run(pytestconfig, function, arguments, keywords)

    return run


def _run(
    config: pytest.Config,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> list[Any]:
    __tracebackhide__ = True
    from ncclscope.errors import NcclscopeError
    from ncclscope.parity.trial import ParityError, Skipped

    session = config.stash[_SESSION]
    item = session.item
    if item is None:
        pytest.fail("run_ranks can only be called in a test", pytrace=False)
    reason: str | None = None
    try:
        trial = _trial(config, item, _settings(item))
        results = trial.run(function, *arguments, **keywords)
    except Skipped as skipped:
        reason = str(skipped)
    except NcclscopeError as error:
        complaint = str(error)
        if isinstance(error, ParityError):
            session.summary = error.summary
    else:
        _note(session, item, trial)
        return results
    # Outside of the except block, or pytest would show both exceptions.
    if reason is not None:
        pytest.skip(reason)
    pytest.fail(complaint, pytrace=False)


def _settings(item: pytest.Item) -> Settings:
    from ncclscope.errors import UsageError
    from ncclscope.parity.trial import Settings

    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return Settings()
    try:
        return Settings(*marker.args, **marker.kwargs)
    except TypeError:
        raise UsageError(f"{MARKER} has wrong arguments", f"it is {_USAGE}") from None


def _trial(config: pytest.Config, item: pytest.Item, settings: Settings) -> Trial:
    from ncclscope.parity.trial import Trial
    from ncclscope.render.console.parity import render_baseline_part
    from ncclscope.render.console.terminal import plain_text

    width = min(max(config.get_terminal_writer().fullwidth, _NARROWEST), _WIDEST)
    keep: Path | None = config.getoption("--ncclscope-dir")
    if keep is not None:
        keep = config.invocation_params.dir / keep / _FILE_NAME.sub("-", item.nodeid)
    return Trial(
        settings,
        item.path.parent,
        traced=_enabled(config),
        update=bool(config.getoption("--ncclscope-update")),
        keep=keep,
        verdict_screen=lambda verdict: plain_text(_screen(verdict, width), width),
        baseline_screen=lambda report: plain_text(render_baseline_part(report, width), width),
    )


def _screen(verdict: Verdict, width: int) -> RenderableType:
    from ncclscope.render.console.attach import render_attach
    from ncclscope.render.console.verdict import render_verdict

    render = render_verdict if verdict.run.snapshot is None else render_attach
    return render(verdict, width)


def _note(session: _Session, item: pytest.Item, trial: Trial) -> None:
    """Record the stored baseline; fail the test if another program has stored the same file."""
    report = trial.report
    if report is None:
        return
    session.runs += 1
    if report.baseline is None or report.outcome not in ("written", "unchanged"):
        return
    path = str(report.baseline.resolve())
    if report.outcome == "written" and path in session.stored:
        pytest.fail(_two_programs(path, session.stored[path]), pytrace=False)
    session.stored.setdefault(path, item.nodeid)
    if report.outcome == "written":
        session.written.add(path)


def _two_programs(path: str, test: str) -> str:
    return (
        f"{path} was just stored for {test}, with other calls: give each program a baseline of "
        f"its own"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the state of a pytest-xdist worker to the controller."""
    own = session.config.stash[_SESSION]
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[MARKER] = {
            "runs": own.runs,
            "stored": own.stored,
            "written": sorted(own.written),
        }
    elif own.conflicts and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Merge the state of a worker, and find baselines that two workers have stored."""
    session = node.config.stash[_SESSION]
    done = getattr(node, "workeroutput", {}).get(MARKER, {})
    session.runs += done.get("runs", 0)
    written = set(done.get("written", ()))
    for path, test in done.get("stored", {}).items():
        other = session.stored.setdefault(path, test)
        if other != test and path in written | session.written:
            session.conflicts.append(f"{test}: {_two_programs(path, other)}")
    session.written |= written


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the number of compared runs, and the stored baselines."""
    session = config.stash[_SESSION]
    if not session.runs:
        return
    terminalreporter.section("ncclscope")
    times = "once" if session.runs == 1 else f"{session.runs} times"
    terminalreporter.line(f"ranks were run and compared {times}")
    for path in sorted(session.written):
        terminalreporter.line(f"stored: {path}")
    for conflict in session.conflicts:
        terminalreporter.line(f"ERROR {conflict}", red=True)
