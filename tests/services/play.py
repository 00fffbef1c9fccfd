"""Play a case: start its services, do to them what it says, ask, and judge the answers."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.services.ask import Answer, ask, ask_rings, diagnose
from tests.services.case import Case, Moment, Truth
from tests.services.score import judge
from tests.services.service import Service

__all__ = ["Result", "play"]


@dataclass(frozen=True)
class Result:
    """An answer, and how good it is."""

    case: str
    moment: str
    way: str
    word: str
    status: str
    causes: tuple[dict[str, Any], ...]
    summary: str
    seconds: float


def play(
    case: Case, keep: Path | None = None, *, traced: bool = True, untraced: bool = True
) -> Iterator[Result]:
    """Yield what is said of a case.

    Args:
        case: The case.
        keep: A folder for its rings and documents.
        traced: Whether to start a traced service.
        untraced: Whether to start an untraced service, if the case has one.
    """
    for tracing in [True] * traced + [False] * (untraced and case.untraced):
        with TemporaryDirectory(prefix="services-") as directory:
            service = Service(
                Path(directory),
                traced=tracing,
                options=case.options,
                environment=case.environment | {"NCCLSCOPE_TEST_FAULTS": ",".join(case.faults)},
            )
            try:
                if case.refused:
                    yield from _refused(case, service, case.refused, keep)
                    continue
                if case.starting:
                    yield from _starting(case, service, case.starting, keep)
                else:
                    service.server.start()
                yield from _moments(case, service, keep)
            finally:
                service.server.kill()  # most are hung, and would not end otherwise
                if keep:
                    log = "traced.log" if tracing else "untraced.log"
                    keep.mkdir(parents=True, exist_ok=True)
                    shutil.copy(service.server.log_path, keep / log)


def _moments(case: Case, service: Service, keep: Path | None) -> Iterator[Result]:
    service.server.complete([1, 2, 3, 4], max_tokens=6)
    for moment in case.moments:
        pids = service.processes()
        moment.act(service)
        time.sleep(moment.seconds)
        if moment.truth.waits and not service.waiting:
            raise RuntimeError(f"no client waits: {service.server.log_tail(20)}")
        for answer in ask(service):
            yield _result(case, moment, answer, pids, keep)
        if service.traced:
            _copy(service, keep, f"alive{'-' if moment.name else ''}{moment.name}")
    if service.traced:
        service.kill()
        answer = diagnose(service, "killed")
        yield _result(case, case.moments[-1], answer, pids, keep)
        _copy(service, keep, "killed")


def _starting(case: Case, service: Service, truth: Truth, keep: Path | None) -> Iterator[Result]:
    """Ask while a service starts, and return when it is healthy."""
    moment = Moment(truth, lambda _: None, "starting")
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(service.server.start)
        while not started.done():
            pids = service.processes() if service.rings.is_dir() else {}
            if any(title.startswith("Worker") for title in pids):
                yield from (_result(case, moment, each, pids, keep) for each in ask(service))
            time.sleep(2.0)
        started.result()


def _refused(case: Case, service: Service, truth: Truth, keep: Path | None) -> Iterator[Result]:
    """Ask once a service has ended instead of becoming healthy."""
    pids: dict[str, int] = {}
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(service.server.start)
        while not started.done():
            pids |= service.processes()
            time.sleep(0.2)
    if started.exception() is None:
        raise RuntimeError("the service has started")
    moment = Moment(truth, lambda _: None, "refused")
    yield from (_result(case, moment, each, pids, keep) for each in ask_rings(service))
    if service.traced:
        _copy(service, keep, "refused")


def _result(
    case: Case, moment: Moment, answer: Answer, pids: dict[str, int], keep: Path | None
) -> Result:
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        name = "-".join(filter(None, [moment.name, answer.way.replace(" ", "-")]))
        kept = {**asdict(answer), "pids": pids}
        (keep / f"{name}.json").write_text(json.dumps(kept, indent=1))
    document = answer.document or {"status": f"exit {answer.exit_status}", "findings": []}
    return Result(
        case.name,
        moment.name,
        answer.way,
        judge(answer.document, moment.truth, pids, killed=answer.way == "killed"),
        document["status"],
        tuple(
            {
                "kind": each["kind"],
                "ranks": each["diverging_ranks"],
                "candidates": each["candidate_ranks"],
                "confidence": each["confidence"],
            }
            for each in document["findings"]
            if each["role"] == "cause"
        ),
        document.get("summary", answer.errors),
        answer.seconds,
    )


def _copy(service: Service, keep: Path | None, name: str) -> None:
    if keep:
        shutil.rmtree(keep / name, ignore_errors=True)
        shutil.copytree(service.rings, keep / name)
