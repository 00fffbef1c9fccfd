"""The stored sequence: what is in it, and what is taken from a file that somebody edited."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ncclscope.errors import DamagedFileError, InputError
from ncclscope.parity.lockfile import read_baseline, render_baseline, write_baseline
from ncclscope.parity.sequence import Vocabulary, sections
from tests.support.cluster import Cluster

HEAD = "ncclscope baseline 1\nshapes exact\n"


def program(directory: Path, size: int, layers: int = 61) -> Cluster:
    """Tensor-parallel pairs, and the counterparts in all pairs as data-parallel groups."""
    cluster = Cluster(directory, size)
    cluster.post(cluster.everybody, "world", "broadcast", shape=(4,), root=0)
    for _ in range(layers):
        for first in range(0, size, 2):
            pair = (first, first + 1)
            cluster.post(pair, "tp:0", members=pair, shape=(15, 2048))
        for place in (0, 1):
            members = range(place, size, 2)
            cluster.post(members, "dp:0", "all_gather", members=members, shape=(3, 256))
    return cluster


def text_of(cluster: Cluster, *, shapes: bool = True) -> str:
    words = Vocabulary()
    return render_baseline(sections(cluster.run(), words, shapes=shapes), words, shapes=shapes)


def calls(path: Path, text: str, *, shapes: bool = True) -> list[list[str]]:
    path.write_text(text)
    words = Vocabulary()
    found = read_baseline(path, words, shapes=shapes).sections
    return [[words.texts[number] for number in section.lines] for section in found]


def test_the_file_is_for_people(tmp_path: Path) -> None:
    assert text_of(program(tmp_path / "rings", 4)) == (
        "# What each rank posts, in order. Made by `ncclscope check --update`, to be reviewed.\n"
        "ncclscope baseline 1\n"
        "shapes exact\n"
        "\n"
        "section  # ranks 0-3\n"
        "  world broadcast [4] float32 root 0\n"
        "  repeat 61\n"
        "    tp all_reduce sum [15,2048] float32\n"
        "    dp all_gather [3,256] float32\n"
    )


def test_more_ranks_make_no_difference(tmp_path: Path) -> None:
    four, eight = (text_of(program(tmp_path / str(size), size)) for size in (4, 8))

    assert calls(tmp_path / "4.lock", four) == calls(tmp_path / "8.lock", eight)


def test_each_distinct_sequence_has_a_section(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    stages = range(4)
    for stage in stages:
        comm = cluster.comm(stage, "pp:0", stages)
        if stage > 0:
            cluster.tracers[stage].record(
                comm, "recv", shape=(8,), dtype="bfloat16", peer=stage - 1
            )
        if stage < 3:
            cluster.tracers[stage].record(
                comm, "send", shape=(8,), dtype="bfloat16", peer=stage + 1
            )

    assert text_of(cluster).split("\n\n")[1:] == [
        "section  # rank 0\n  pp send [8] bfloat16 to +1",
        "section  # ranks 1 2\n  pp recv [8] bfloat16 from -1\n  pp send [8] bfloat16 to +1",
        "section  # rank 3\n  pp recv [8] bfloat16 from -1\n",
    ]


def test_groups_without_a_name_are_numbered_by_use(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    for label, members in (("pg1", (0, 1)), ("pg2", (2, 3))):
        cluster.post(members, label, members=members)
    cluster.post(cluster.everybody, "pg3", "barrier", shape=None, dtype=None)

    (section,) = calls(tmp_path / "a.lock", text_of(cluster))
    assert section == ["group#1 all_reduce sum [4,2] float32", "group#2 barrier"]


def test_own_rows_are_no_difference_between_ranks(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    for rank in cluster.everybody:
        cluster.post([rank], "dp:0", "all_gatherv", shape=(3 + rank, 256), sizes=(3, 4))

    (section,) = calls(tmp_path / "a.lock", text_of(cluster))
    assert section == ["dp all_gatherv [v,256] float32 sizes 3,4"]


def test_without_shapes_sizes_are_stars(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.post(cluster.everybody, "dp:0", "all_gatherv", shape=(3, 256), sizes=(3, 3))
    exact, ignored = text_of(cluster), text_of(cluster, shapes=False)

    path = tmp_path / "a.lock"
    assert calls(path, exact) == [["dp all_gatherv [v,256] float32 sizes 3 each"]]
    assert calls(path, ignored) == [["dp all_gatherv [v,*] float32"]]
    assert calls(path, exact, shapes=False) == calls(path, ignored)


def test_a_window_has_no_sequence(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2, capacity=1024)
    cluster.history(count=1100)

    with pytest.raises(InputError, match=r"76 calls of rank 0.*NCCLSCOPE_RECORDS=2048"):
        text_of(cluster)


def test_comments_and_blank_lines_are_for_people(tmp_path: Path) -> None:
    text = f"# a\n\n{HEAD}\nsection # all ranks\n  # b\n  group#2 barrier # c\n\n"

    assert calls(tmp_path / "a.lock", text) == [["group#2 barrier"]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a baseline"),
        ("all_reduce\n", "is not a baseline"),
        ("ncclscope baseline 2\n", "of another version"),
        ("ncclscope baseline 1\nshapes maybe\n", ":2: shapes are exact or ignored"),
        (f"{HEAD}  tp barrier\n", ":3: a section was expected"),
        (f"{HEAD}section\n    tp a\n  tp b\n", ":5: the indentation is uneven"),
        (f"{HEAD}section\n  repeat 3\n  tp a\n", ":4: nothing to repeat"),
        (f"{HEAD}section\n  repeat 900000000\n    tp a\n", "more than 4194304 calls"),
        (
            f"{HEAD}section\n"
            + "".join(f"{' ' * depth}repeat 1\n" for depth in range(1, 90))
            + f"{' ' * 90}tp a\n",
            "more than 64 loops",
        ),
    ],
)
def test_a_file_that_is_no_baseline_says_so(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DamagedFileError, match=complaint):
        calls(tmp_path / "a.lock", text)


def test_loops_in_loops_cannot_fill_the_memory(tmp_path: Path) -> None:
    loops = "".join(f"{' ' * depth}repeat 100\n" for depth in range(1, 20))

    with pytest.raises(DamagedFileError, match="more than"):
        calls(tmp_path / "a.lock", f"{HEAD}section\n{loops}{' ' * 20}tp a\n")


def test_a_line_of_blanks_takes_no_longer_than_others(tmp_path: Path) -> None:
    blanks = " " * 300_000
    before = time.process_time()

    assert calls(tmp_path / "a.lock", f"{HEAD}section\n  tp{blanks}a # b\n") == [[f"tp{blanks}a"]]
    assert time.process_time() - before < 2


def test_a_terminal_is_shown_nothing_that_it_would_act_on(tmp_path: Path) -> None:
    assert calls(tmp_path / "a.lock", f"{HEAD}section\n  tp \x1b[2J\n") == [["tp \\x1b[2J"]]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.lock")

    with pytest.raises(DamagedFileError, match="not a regular file"):
        read_baseline(tmp_path / "a.lock", Vocabulary())


def test_writing_leaves_nothing_else_behind(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.lock"
    write_baseline(path, "one\n")
    path.chmod(0o640)
    write_baseline(path, "two\n")

    assert path.read_text() == "two\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == ["a.lock"]


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(InputError, match="cannot be written"):
        write_baseline(tmp_path / "file" / "a.lock", "text")
