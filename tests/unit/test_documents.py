"""Sessions in documents: what is read from them, and that a false one does not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documents import Command, Outcome, Session, differences, sessions

TEXT = """\
Words.

```console
$ echo one && \\
    echo two
one
two
$ (exit 3)
$ echo $?
3
```

```console elsewhere
$ ssh node-a
```

```console
$ export NAME=kept
$ echo "$NAME"; pwd
kept
/home/you/ncclscope
```
"""


def wrong(shown: str, message: str, status: int = 0) -> bool:
    return bool(differences([Outcome(Command("true", shown), message, status)]))


def test_a_document_is_one_session(tmp_path: Path) -> None:
    commands = sessions(TEXT)

    assert [command.text for command in commands] == [
        "echo one && \\\n    echo two",
        "(exit 3)",
        "echo $?",
        "export NAME=kept",
        'echo "$NAME"; pwd',
    ]
    assert differences(Session(tmp_path).run(commands, 20)) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("$ ncclscope diagnose nowhere", "ended with 2"),
        ("$ ncclscope no-such-command", "ended with 2"),
        ("$ no-such-program", "ended with 127"),
        ("$ false", "ended with 1"),
        ("$ echo one\ntwo", "printed"),
        ("$ echo one", "printed"),
        ("$ exit 0", "did not come to its end"),
        ("$ sleep 60", "did not come to its end"),
    ],
)
def test_a_difference_from_the_document_is_reported(tmp_path: Path, text: str, reason: str) -> None:
    commands = sessions(f"```console\n{text}\n```\n")
    limit = 2 if "sleep" in text else 60
    (difference,) = differences(Session(tmp_path).run(commands, limit))

    assert reason in difference


def test_a_session_begins_with_a_command() -> None:
    with pytest.raises(ValueError, match="begins with a command"):
        sessions("```console\noutput\n```\n")


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ("a\n...\nd", "a\nb\nc\nd\n"),
        ("...\nb\n...", "a b c"),
        ("a\n  ...", "a b"),
        ("│ Rank 2 (vm, pid 585)   │\n│ left. │", "│ Rank 2 (node-15, pid 48823) left. │"),
        (" 0  583  world  13", " 0  61583  world  13"),
        ("138 kB, 0.5 s at 04:52:07", "9 kB, 12 s at 23:00:00"),
    ],
)
def test_what_varies_is_equal(shown: str, message: str) -> None:
    assert not wrong(shown, message)


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ("a\n...\nd", "a b c"),
        ("a\n...\nd", "b d"),
        ("a\n...\nc\n...\nb\n...", "a b c"),
        ("a\n...\na", "a"),
        ("rank 2", "rank 3"),
        (" 0  583  world  13", " 0  583  world  14"),
    ],
)
def test_what_does_not_vary_is_compared(shown: str, message: str) -> None:
    assert wrong(shown, message)
