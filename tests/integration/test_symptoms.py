"""The lines of logs in docs/symptoms.md, from real ranks over gloo, and the verdicts beside them.

Each job prints the line that is the heading of an entry, and ends. `diagnose` then says of its
rings what the entry shows, but for hosts, process ids, places and times.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose, open_run
from tests.integration.c10d_ranks import ROOT, main, meeting, start
from tests.support.documents import blocks

pytest.importorskip("torch")

SIZE, DIVERGING, SECONDS = 4, 3, 4
DEADLINE = 100.0
PAGE = ROOT / "docs" / "symptoms.md"


def block() -> None:
    """Wait until the process is killed."""
    with open(os.environ["MEETING_POINT"] + ".pipe") as pipe:
        pipe.read()


def meet() -> Any:
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=SECONDS))
    return dist


def reduce(dist: Any) -> None:
    import torch

    dist.all_reduce(torch.ones(4))


def never_comes(rank: int) -> None:
    if rank == DIVERGING:
        block()
    meet()


def serves_no_store(rank: int) -> None:
    if rank == 0:
        block()
    meet()


def sets_no_key(rank: int) -> None:
    store = meet().distributed_c10d._get_default_store()
    if rank == DIVERGING:
        block()
    store.wait(["weights"], timedelta(seconds=SECONDS))


def comes_too_late(rank: int) -> None:
    dist = meet()
    reduce(dist)
    if rank == DIVERGING:
        block()
    reduce(dist)


def is_gone(rank: int) -> None:
    dist = meet()
    reduce(dist)
    if rank == DIVERGING:
        os.kill(os.getpid(), signal.SIGKILL)
    reduce(dist)


@dataclass(frozen=True)
class Symptom:
    """A line that a job prints.

    Attributes:
        function: What its ranks run.
        line: The line, as a regular expression.
        heading: What of it is in the heading of its entry.
        kind: Kind of the verdict.
        rank: The rank that the verdict names.
    """

    function: str
    line: str
    heading: str
    kind: str
    rank: int = DIVERGING


SYMPTOMS = [
    Symptom(
        "never_comes",
        r"Timed out after \d+ seconds waiting for clients\. 3/4 clients joined\.",
        "waiting for clients. 3/4 clients joined",
        "init_stalled",
    ),
    Symptom(
        "serves_no_store",
        r"The client socket has timed out after \d+ms while trying to connect to \(127\.0\.0\.1, ",
        "while trying to connect to",
        "init_stalled",
        rank=0,
    ),
    Symptom(
        "sets_no_key",
        r"wait timeout after \d+ms, keys: /",
        "wait timeout after 300000ms, keys",
        "init_stalled",
    ),
    Symptom(
        "comes_too_late",
        r"Timed out waiting \d+ms for recv operation to complete",
        "ms for recv operation to complete",
        "not_joined",
    ),
    Symptom(
        "is_gone",
        r"Connection closed by peer|Connection reset by peer",
        "Connection closed by peer",
        "dead_rank",
    ),
]


FAST = ("comes_too_late", "is_gone")
"""Symptoms whose jobs need no timeout of some seconds, or are what most users see."""


def printed_by(function: str, rings: Path) -> str:
    """Run a job until all ranks but the absent one have ended; return what they printed."""
    os.mkfifo(rings / "store.pipe")
    environment = meeting(rings, SIZE)
    ranks = [
        start(__file__, function, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(SIZE)
    ]
    absent = 0 if function == "serves_no_store" else DIVERGING
    try:
        for number, process in enumerate(ranks):
            if number != absent:
                process.wait(DEADLINE)
    finally:
        for process in ranks:
            process.kill()
        printed = [process.communicate()[0] for process in ranks]
    return "\n".join(filter(None, printed))


@pytest.mark.parametrize(
    "symptom",
    [
        pytest.param(one, marks=() if one.function in FAST else pytest.mark.slow, id=one.function)
        for one in SYMPTOMS
    ],
)
def test_line_of_a_log_leads_to_this_verdict(rings: Path, symptom: Symptom) -> None:
    text = printed_by(symptom.function, rings)

    assert re.search(symptom.line, text), text
    verdict = diagnose(open_run(rings))
    assert verdict.cause is not None, verdict.summary
    assert (verdict.status, verdict.cause.kind, verdict.cause.diverging_ranks) == (
        *("hung", symptom.kind, (symptom.rank,)),
    )
    assert plain(verdict.summary) in plain(entry(symptom.heading)), verdict.summary


def entry(heading: str) -> str:
    """Return what the screens of the entry show whose heading contains a text."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    (found,) = [one for one in sections if heading in one.partition("\n")[0]]
    shown = "\n".join(body for _, body in blocks(found))
    return re.sub(r"[│╭╮╰╯─\s]+", " ", shown)


def plain(text: str) -> str:
    """Return a summary without hosts, process ids, times, places and what wraps lines."""
    text = re.sub(r"\([\w.-]+, pid \d+\)", "(HOST)", " ".join(text.split()))
    text = re.sub(r"\([^()]*\bat \w+\.py:\d+ [\w<>]+\)", "(PLACE)", text)
    return re.sub(r"\b\d+ s\b", "N s", text)


def test_each_line_of_the_table_has_an_entry_that_quotes_it() -> None:
    text = PAGE.read_text("utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    for symptom in SYMPTOMS:
        assert sum(symptom.heading in one for one in headings) == 1, symptom.heading
    for line in (
        "No available shared memory broadcast block found in 60 seconds",
        "Watchdog caught collective operation timeout",
        "sample_tokens timed out",
        "DeepEP timeout",
        "Waiting for remote KVs",
        "NCCL WARN",
        "ncclRemoteError",
        "unhandled system error",
    ):
        assert any(line in one for one in headings), line


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(globals())
