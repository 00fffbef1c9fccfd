"""Names of hosts, of the command line and of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.collect.commands import hosts
from ncclscope.errors import InputError, UsageError


def test_a_file_has_a_host_a_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# nodes\nnode-1 slots=8\n\nme@node-2 # spare\nnode-1\n")

    assert hosts(f"@{file}") == ["node-1", "me@node-2"]


@pytest.mark.parametrize(
    "secret", ["root:$6$hunter2:19000::", "-oProxyCommand=hunter2", "hunter2!"]
)
def test_an_error_shows_nothing_of_a_file(tmp_path: Path, secret: str) -> None:
    file = tmp_path / "shadow"
    file.write_text(f"# comment\nnode-1\n{secret}\n")

    with pytest.raises(UsageError) as caught:
        hosts(f"@{file}")

    assert f"line 3 of {file}" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.__dict__}"


def test_nor_does_one_about_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"\xabhunter2")

    with pytest.raises(InputError) as caught:
        hosts(f"@{file}")

    assert str(caught.value).startswith(f"{file} cannot be read")
    assert "0xab" not in str(caught.value)


def test_a_name_on_the_command_line_is_shown() -> None:
    with pytest.raises(UsageError, match="'a;b' is not a host name"):
        hosts("node-1,a;b")


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(UsageError, match="line 1 of /dev/zero is not a host name"):
        hosts("@/dev/zero")
