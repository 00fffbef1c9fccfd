"""Which of two findings about the same calls is the verdict, and that no name decides it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

import pytest

from ncclscope.engine.case import Case
from ncclscope.engine.precedence import drop_refined
from ncclscope.engine.registry import Analyzer
from ncclscope.model import Blame, Communicator, Finding
from tests.support import fork_server
from tests.support.cluster import Cluster

ClusterOf = Callable[[int], Cluster]

PACKAGE = {
    # What a person writes: a module, and the entry point in pyproject.toml. pip turns the latter
    # into entry_points.txt.
    "repeated_call.py": '''
"""A call that was posted again with another reduction."""

from dataclasses import replace

from ncclscope.engine.findings import from_difference
from ncclscope.wording.differences import subject
from ncclscope.wording.names import comm_text


class RepeatedCall:
    """One rank posted a call twice, the second time with another reduction."""

    name = "repeated_call"
    refines = ("extra_call",)

    def analyze(self, case):
        for difference in case.differences:
            if not difference.inserted or difference.seq < 2:
                continue
            log = case.logs(difference.comm.key)[difference.odd[0]]
            before, odd = log.call(difference.seq - 1), difference.odd_call
            if odd.redop != before.redop and odd.op == before.op and odd.shape == before.shape:
                yield from_difference(
                    case,
                    difference,
                    kind="NAME",
                    summary=(
                        f"{subject(case.run, difference)} posted call {difference.seq - 1} on "
                        f"{comm_text(difference.comm)} again, with another reduction."
                    ),
                    extent=1,
                )
''',
    "repeated_call-1.0.dist-info/entry_points.txt": (
        "[ncclscope.analyzers]\nrepeated_call = repeated_call:RepeatedCall\n"
    ),
    "repeated_call-1.0.dist-info/METADATA": "Name: repeated-call\nVersion: 1.0\n",
}


def _twice(cluster: Cluster, redop: str) -> None:
    cluster.history()
    cluster.post(cluster.everybody, "tp:0", shape=(9, 2))
    cluster.post([2], "tp:0", shape=(9, 2), redop=redop)
    for rows in (20, 21, 22):
        cluster.post(cluster.everybody, "tp:0", shape=(rows, 2), done=False)


def _diagnosed_with(packages: Path, rings: Path) -> dict[str, object]:
    paths = [str(packages), os.environ.get("PYTHONPATH", "")]
    result = fork_server.run(
        [sys.executable, "-m", "ncclscope", "diagnose", "--json", str(rings)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    document: dict[str, object] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("kind", ["repeated_call", "a_repeated_call", "z_repeated_call"])
def test_an_analyzer_of_another_package_refines_ours(
    cluster_of: ClusterOf, tmp_path: Path, kind: str
) -> None:
    cluster = cluster_of(4)
    _twice(cluster, "max")
    site = tmp_path / "site"
    for name, text in PACKAGE.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text.replace("NAME", kind))

    document = _diagnosed_with(site, cluster.directory)

    verdict = document["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["kind"], verdict["diverging_ranks"], verdict["seq"]) == (kind, [2], 7)
    findings = document["findings"]
    assert isinstance(findings, list)
    assert "extra_call" not in {finding["kind"] for finding in findings}


def test_what_it_does_not_find_stays_as_it_was(cluster_of: ClusterOf, tmp_path: Path) -> None:
    """Near miss: the same call once more, with the same reduction."""
    cluster = cluster_of(4)
    _twice(cluster, "sum")
    site = tmp_path / "site"
    for name, text in PACKAGE.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)

    verdict = _diagnosed_with(site, cluster.directory)["verdict"]

    assert isinstance(verdict, dict)
    assert (verdict["kind"], verdict["diverging_ranks"]) == ("extra_call", [2])


# --- the rule itself ------------------------------------------------------------------------

TP = Communicator("key", "tp:0", (0, 1, 2, 3), "nccl")


class _Fixed:
    """An analyzer that always finds the same."""

    name: ClassVar[str] = "fixed"

    def __init__(self, kind: str, *refines: str, seq: int = 5, ranks: tuple[int, ...] = (2,)):
        self.refines = refines
        self.finding = Finding(
            kind,
            kind,
            comm=TP,
            seq=seq,
            blame=Blame.on(ranks, "certain"),
            role="cause",
        )

    def analyze(self, case: Case) -> Iterable[Finding]:
        """Yield it."""
        yield self.finding


def _kept(*analyzers: _Fixed) -> list[str]:
    claims: list[tuple[Analyzer, Finding]] = [(each, each.finding) for each in analyzers]
    return [finding.kind for finding in drop_refined(claims)]


def test_a_refining_finding_replaces_the_refined_one_in_any_order() -> None:
    assert _kept(_Fixed("extra_call"), _Fixed("z", "extra_call")) == ["z"]
    assert _kept(_Fixed("a", "extra_call"), _Fixed("extra_call")) == ["a"]


def test_refining_reaches_through_a_third() -> None:
    chain = _Fixed("c", "b"), _Fixed("b", "a"), _Fixed("a")

    assert _kept(*chain) == ["c"]
    assert _kept(*reversed(chain)) == ["c"]


def test_analyzers_that_refine_each_other_cancel_nothing() -> None:
    assert _kept(_Fixed("a", "b"), _Fixed("b", "a")) == ["a", "b"]
    assert _kept(_Fixed("a", "b"), _Fixed("b", "c"), _Fixed("c", "a")) == ["a", "b", "c"]


def test_another_rank_or_an_earlier_call_is_not_refined() -> None:
    own = _Fixed("z", "extra_call", seq=9)

    assert _kept(own, _Fixed("extra_call", seq=9, ranks=(1,))) == ["z", "extra_call"]
    assert _kept(own, _Fixed("extra_call", seq=3)) == ["z", "extra_call"]
    assert _kept(own, _Fixed("extra_call", seq=12)) == ["z"]


def test_an_analyzer_does_not_refine_its_own_findings() -> None:
    assert _kept(_Fixed("extra_call", "extra_call")) == ["extra_call"]
