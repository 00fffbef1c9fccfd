"""Output to a terminal: pyte shows the intended screen, and little is written for it."""

from __future__ import annotations

import re

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclscope.render.tui.keys import Keys
from ncclscope.render.tui.painter import Painter
from ncclscope.render.tui.spans import Column, Line, cropped, drawn, rule, table, width
from tests.support.examples import examples

COLUMNS, LINES = 12, 4
STYLES = ("", "bold", "red", "yellow reverse", "dim")

letters = st.sampled_from("abcXYZ  ─−漢字é\u0301\u200d\x1b\x07\n\t\u202e")
spans = st.tuples(st.text(letters, max_size=8), st.sampled_from(STYLES))
pictures = st.lists(st.lists(spans, max_size=4), max_size=LINES + 1)


def shown(terminal: pyte.Screen) -> list[list[tuple[str, bool, bool, str]]]:
    return [
        [
            (cell.data, cell.bold, cell.reverse, cell.fg)
            for cell in (terminal.buffer[line][column] for column in range(COLUMNS))
        ]
        for line in range(LINES)
    ]


def terminal() -> tuple[pyte.Screen, pyte.ByteStream]:
    screen = pyte.Screen(COLUMNS, LINES)
    return screen, pyte.ByteStream(screen)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(pictures, min_size=2, max_size=5))
def test_changes_lead_to_the_same_screen_as_the_whole_picture(turns: list[list[Line]]) -> None:
    painter = Painter()
    screen, stream = terminal()
    for lines in turns:
        stream.feed(painter.paint(lines, COLUMNS, LINES))
    fresh, other = terminal()
    other.feed(Painter().paint(turns[-1], COLUMNS, LINES))

    assert shown(screen) == shown(fresh)
    assert painter.paint(turns[-1], COLUMNS, LINES) == b""


@given(pictures)
def test_only_our_own_sequences_are_written(lines: list[Line]) -> None:
    written = Painter().paint(lines, COLUMNS, LINES)

    rest = re.sub(rb"\x1b\[(?:\d+;\d+H|K|2J|[0-9;]*m)", b"", written).decode()
    assert rest.isprintable()


def test_a_number_that_has_changed_is_all_that_is_written() -> None:
    painter = Painter()
    line: Line = [("rank 3", "bold"), ("  call 1000  ", ""), ("all_reduce", "")]
    painter.paint([line, line], 80, 24)

    line[1] = ("  call 1001  ", "")
    assert painter.paint([line, line], 80, 24) == b"\x1b[1;17H1\x1b[2;17H1"


def test_a_terminal_of_another_encoding_gets_letters_that_it_has() -> None:
    assert b"-- 3 -" in Painter("ascii").paint([[("── 3 −", "")]], 20, 2)
    assert b"?" in Painter("latin-1").paint([[("漢", "")]], 20, 2)


def test_colours_can_be_left_out() -> None:
    written = Painter(colour=False).paint([[("x", "bold red")]], 20, 2)

    assert b"\x1b[0;1mx" in written


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["page up", "page down", "home", "end"]),
        (b"\t\r\n \x1b[Z\x0c", ["tab", "enter", "enter", "space", "back tab", "redraw"]),
        (b"\x1b[1;5Cq\x1b[200~", ["q"]),
        (b"\x1bj", ["escape", "j"]),
        (b"\xff\x00", ["\xff", "\x00"]),
    ],
)
def test_keys_are_known_however_they_come(sent: bytes, meant: list[str]) -> None:
    assert Keys().take(sent) == meant
    keys = Keys()
    assert [key for byte in sent for key in keys.take(bytes([byte]))] == meant


def test_escape_is_a_key_when_nothing_follows() -> None:
    keys = Keys()

    assert keys.take(b"\x1b") == []
    assert keys.waits
    assert keys.end() == ["escape"]
    assert keys.end() == []
    assert keys.take(b"\x1b[" + b"1" * 100)[0] == "escape", "no key sends as much"
    assert keys.take(b"q") == ["q"]


def test_a_table_fits_and_names_what_it_crops() -> None:
    columns = [Column("rank", right=True), Column("last call", fills=True), Column("quiet", True)]
    rows = [
        [("3", ""), ("all_reduce of very much", ""), ("12 s", "")],
        [("41", ""), ("x", ""), ("", "")],
    ]

    heading, lines = table(columns, rows, 26)

    text = ["".join(part for part, _ in line) for line in (heading, *lines)]
    assert text == [
        "rank  last call      quiet",
        "   3  all_reduce o…   12 s",
        "  41  x                   ",
    ]
    assert {width(line) for line in lines} == {26}


def test_foreign_text_in_a_table_takes_the_room_that_it_shows() -> None:
    columns = [Column("comm"), Column("n")]
    _, lines = table(columns, [[("漢\x1b", ""), ("1", "")], [("tp", ""), ("2", "")]], 40)

    assert ["".join(part for part, _ in line) for line in lines] == ["漢\\x1b  1", "tp      2"]


def test_lines_and_rules_are_cropped() -> None:
    assert cropped("abcdef", 4) == "abc…"
    assert cropped("漢字漢字", 5) == "漢字…"
    assert width(rule([("LOG", "bold")], 30, "tab")) == 30
    assert width(rule([("LOG", "bold")], 4, "tab")) >= 4
    assert "".join(text for text, _ in drawn("a\x1b[31mb", 30)[0]) == "a\\x1b[31mb"
