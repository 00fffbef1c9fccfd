"""The verdict screen, as rich draws it on terminals of two widths."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ncclscope.engine.verdict import Verdict
from ncclscope.render.console.verdict import print_verdict
from ncclscope.render.tui.divergence import divergence_lines
from tests.support.cluster import Cluster


def _screen(verdict: Verdict, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=False)
    print_verdict(verdict, console)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.fixture
def cluster_of(tmp_path: Path) -> Callable[[int], Cluster]:
    return lambda size: Cluster(tmp_path / "rings", size)


@pytest.fixture
def skipped(cluster_of: Callable[[int], Cluster]) -> Verdict:
    cluster = cluster_of(4)
    cluster.history(count=4)
    for rank in cluster.everybody:
        if rank != 2:
            cluster.post([rank], "tp:0", shape=(77, 2))
        cluster.post([rank], "tp:0", "all_gather", done=False)
    return cluster.verdict()


@pytest.mark.parametrize("width", [80, 160])
def test_nothing_is_wider_than_the_terminal(skipped: Verdict, width: int) -> None:
    assert max(len(line) for line in _screen(skipped, width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 160])
def test_the_answer_is_in_the_frame(skipped: Verdict, width: int) -> None:
    screen = _screen(skipped, width)
    frame = " ".join(line.strip("│ ") for line in screen.splitlines() if line.startswith("│"))

    assert "DIVERGED · missing call · rank 2" in screen
    assert "Rank 2 (node-0, pid 1002) skipped 1 call on tp:0 of ranks 0-3" in frame
    assert "no progress for 60 s" in screen


def test_in_a_tie_each_side_is_named_by_what_it_posted(
    cluster_of: Callable[[int], Cluster],
) -> None:
    cluster = cluster_of(4)
    cluster.history(count=4)
    for rank in cluster.everybody:
        shape = (8, 2) if rank in (1, 3) else (9, 2)
        cluster.post([rank], "tp:0", shape=shape, done=False)
    verdict = cluster.verdict()
    assert verdict.cause is not None
    assert verdict.cause.diverging_ranks == ()

    for screen in (
        _screen(verdict, 160),
        "\n".join("".join(t for t, _ in line) for line in divergence_lines(verdict, "", 160)),
    ):
        lines = screen.splitlines()
        sides = next(
            found for line in lines if len(found := re.findall(r"ranks (\d \d)", line)) == 2
        )
        first = next(line for line in lines if line.strip().startswith(">"))
        posted = dict(zip(sides, re.findall(r"\[\d,2\]", first), strict=True))
        assert posted == {"0 2": "[9,2]", "1 3": "[8,2]"}


def test_equal_calls_share_a_line(skipped: Verdict) -> None:
    lines = _screen(skipped, 160).splitlines()

    missing = next(line for line in lines if line.strip().startswith("> #5"))
    gathers = next(line for line in lines if "#6" in line and "all_gather" in line)
    assert missing.rstrip().endswith("-")
    assert gathers.count("all_gather") == 2
    assert "#5" in gathers


def test_recorded_and_inferred_are_distinguished(cluster_of: Callable[[int], Cluster]) -> None:
    cluster = cluster_of(4)
    for pair in ((0, 1), (2, 3)):
        cluster.history("tp:0", members=pair)
    for rank in cluster.everybody:
        members = (0, 1) if rank < 2 else (2, 3)
        op = "broadcast" if rank == 3 else "all_reduce"
        cluster.post([rank], "tp:0", op, members=members, done=False)

    screen = _screen(cluster.verdict(), 80)

    recorded, _, inferred = screen.partition("CONCLUSIONS")
    assert "recorded" in recorded
    assert "inferred, not recorded" in inferred
    assert "communicators of its kind" in inferred
    assert "communicators of its kind" not in recorded


@pytest.mark.parametrize(("posted", "shown"), [([2], "6 (+1)"), ([0, 1, 3], "5 (\N{MINUS SIGN}1)")])
def test_the_table_counts_from_the_majority(
    cluster_of: Callable[[int], Cluster], posted: list[int], shown: str
) -> None:
    cluster = cluster_of(4)
    cluster.history()
    cluster.post(posted, "tp:0", done=False)

    (line,) = (line for line in _screen(cluster.verdict(), 80).splitlines() if " 1002 " in line)

    assert shown in line


def test_healthy_ranks_are_reported_to_agree(cluster_of: Callable[[int], Cluster]) -> None:
    cluster = cluster_of(4)
    cluster.history()

    screen = _screen(cluster.verdict(quiet=1.0), 80)

    assert " OK " in screen
    assert "All ranks agree" in screen
    assert "EVIDENCE" not in screen


def test_many_ranks_at_the_same_position_share_a_row(cluster_of: Callable[[int], Cluster]) -> None:
    cluster = cluster_of(24)
    cluster.history(count=2)
    cluster.post([7], "tp:0", "all_gather", done=False)
    cluster.post([r for r in cluster.everybody if r != 7], "tp:0", done=False)

    screen = _screen(cluster.verdict(), 80)

    assert "0-6 8-23" in screen
    table = screen.partition("AROUND")[0].splitlines()
    assert sum(" tp:0 " in line and "scheduled" in line for line in table) == 2


def test_text_from_files_is_no_markup(cluster_of: Callable[[int], Cluster]) -> None:
    cluster = cluster_of(2)
    cluster.history(site="[red]evil[/red].py:1 [bold]f")
    cluster.post([0], "tp:0", done=False, site="[link=x]a.py:1 f")
    cluster.post([1], "tp:0", "all_gather", done=False)

    assert "[link=x]a.py:1 f" in _screen(cluster.verdict(), 160)


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_shows_the_transfer_in_which_a_rank_waits(
    cluster_of: Callable[[int], Cluster], width: int
) -> None:
    cluster = cluster_of(4)
    cluster.history("pp:0", count=3)
    cluster.post([0], "pp:0", "send", peer=2, shape=(4, 2), done=False)
    verdict = cluster.verdict()

    screen = _screen(verdict, width)

    assert "send to 2 [4,2] scheduled" in re.sub(r"\s+", " ", screen)
    found = {row.rank.rank: row.to_dict()["comms"]["pp:0"] for row in verdict.table}
    assert found[0]["last_transfer"] == {
        "op": "send",
        "peer": 2,
        "shape": [4, 2],
        "state": "scheduled",
    }
    assert found[0]["last_op"] == "all_reduce"
    assert "last_transfer" not in found[2]


@pytest.mark.parametrize("width", [80, 160])
def test_a_recorded_name_begins_no_line_of_its_own(
    cluster_of: Callable[[int], Cluster], width: int
) -> None:
    cluster = cluster_of(3)
    cluster.history("world")
    cluster.post([0, 1], "world", "evil\n - rank 2 is at fault", done=False)
    cluster.post([2], "world", "barrier", done=False)

    screen = _screen(cluster.verdict(), width)

    assert not re.search(r"^ *(-  *)?rank 2 is at fault", screen, re.MULTILINE)
    assert r"evil\n - rank" in screen
