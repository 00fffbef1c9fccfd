"""The kernel's log: what it killed, which GPU failed, and what of a hostile log is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ncclscope.attach.host.kernel_log import parse_log, read_kernel_log, with_kernel_log
from ncclscope.attach.host.sockets import lost_peers
from ncclscope.model import Rank, Run

BOOTED = 1_700_000_000_000_000_000

LINES = {
    "3,1201,5000000,-;Out of memory: Killed process 9092 (python3) total-vm:8131148kB, "
    "anon-rss:7829420kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:15612kB "
    "oom_score_adj:0": ("oom", 9092, "python3, 7.8 GB resident", 5),
    "[12345.678901] Memory cgroup out of memory: Killed process 29180 (VLLM::Worker) "
    "total-vm:1048576kB, anon-rss:524288kB, file-rss:0kB, shmem-rss:0kB, UID:0": (
        "oom", 29180, "VLLM::Worker, 0.5 GB resident", 12345,
    ),
    "[ 4563.079551] Out of memory: Kill process 2048 (memory-hog) score 900 or sacrifice child": (
        "oom", 2048, "memory-hog", 4563,
    ),
    "NVRM: Xid (PCI:0000:01:00): 62, 323f0f30 0000c3d8 00000000 206dae68": (
        "xid", 0, "Xid 62 on PCI:0000:01:00: 323f0f30 0000c3d8 00000000 206dae68", None,
    ),
    "6,12,7000000,-;NVRM: Xid (PCI:0000:39:00): 31, pid=36152, name=python, Ch 00000008": (
        "xid", 36152, "Xid 31 on PCI:0000:39:00: pid=36152, name=python, Ch 00000008", 7,
    ),
    "[77.000001] NVRM: Xid (0000:03:00): 14": ("xid", 0, "Xid 14 on 0000:03:00", 77),
    "NVRM: Xid (PCI:0000:00:1e): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.": (
        "xid", 0,
        "Xid 79 on PCI:0000:00:1e: pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_real_lines_are_read(line: str) -> None:
    kind, pid, text, seconds = LINES[line]
    (event,) = parse_log(f"{line}\n KEY=value\n".encode(), BOOTED)

    assert (event.kind, event.pid, event.text) == (kind, pid, text)
    assert (event.time_ns - BOOTED) // 10**9 == seconds if seconds else event.time_ns == 0


@pytest.mark.parametrize(
    "line",
    [
        "6,1,100,-;Linux version 6.18",
        "oom_reaper: reaped process 9092 (python3), now anon-rss:0kB",
        "Out of memory: Killed process x (python)",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "",
    ],
)
def test_other_lines_are_left_out(line: str) -> None:
    assert parse_log(line.encode(), BOOTED) == ()


def test_hostile_text_is_made_printable_and_bounded() -> None:
    name = "\x1b[2J\u202e" + "x" * 40
    rest = "\x07y" * 5000
    log = f"Out of memory: Killed process 1 ({name})\nNVRM: Xid (PCI:0): 13, {rest}\n"
    killed, failed = parse_log(log.encode(), BOOTED)

    assert killed.text.isprintable()
    assert failed.text.isprintable()
    assert len(failed.text) <= 200
    assert len(parse_log(b"NVRM: Xid (PCI:0): 13\n" * 10_000, BOOTED)) <= 64


def test_impossible_pids_are_unknown() -> None:
    (event,) = parse_log(b"Out of memory: Killed process 999999999 (python)", BOOTED)

    assert event.pid == 0


@pytest.mark.parametrize("kind", ["absent", "directory", "fifo"])
def test_a_log_that_cannot_be_read_is_a_source_that_is_not_available(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "log"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    events, source = read_kernel_log(path)

    assert (events, source.available) == ((), False)
    assert "--kernel-log" in source.enable


def test_it_is_read_only_where_a_process_has_ended_here(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Out of memory: Killed process 5 (python)\n")
    living = Run((Rank(0, alive=True, pid=5),), {}, 1)
    ended = Run((Rank(0, alive=False, pid=5),), {}, 1)

    assert with_kernel_log(living, log).kernel == ()
    assert [event.pid for event in with_kernel_log(ended, log).kernel] == [5]


def procfs(home: Path, *rows: str) -> Path:
    """Write a process with one socket, of inode 77, and the table of all connections."""
    (home / "5/fd").mkdir(parents=True)
    (home / "5/net").mkdir()
    os.symlink("socket:[77]", home / "5/fd/3")
    (home / "5/net/tcp").write_text(
        "\n".join(["  sl  local_address rem_address ...", *rows]) + "\n"
    )
    return home


def row(
    state: str, retries: str = "00000000", inode: int = 77, local: str = "0100007F:C350"
) -> str:
    return (
        f"   0: {local} 0100007F:15B3 {state} 00000000:00000000 00:00000000 {retries}  1000 0 "
        f"{inode} 1 0000000000000000 20 4 30 10 -1"
    )


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ([row("08")], ("127.0.0.1:5555 has closed the connection, and nothing listens there",)),
        (
            [row("08"), row("0A", inode=9, local="00000000:15B3")],
            ("127.0.0.1:5555 has closed the connection",),
        ),
        ([row("02")], ("127.0.0.1:5555 does not answer to a connect",)),
        ([row("01", "00000005")], ("127.0.0.1:5555 has not acknowledged what was sent, 5 times",)),
        ([row("01")], ()),
        ([row("08", inode=78)], ()),
        (["garbage", "0: zz:1 zz:2 08 0 0 0 0 0 77", row("0X")], ()),
    ],
)
def test_connections_to_nobody(tmp_path: Path, rows: list[str], lines: tuple[str, ...]) -> None:
    assert lost_peers(5, procfs(tmp_path, *rows)) == lines
