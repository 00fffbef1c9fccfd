"""TCP connections of a process whose other side is gone, from /proc.

A side-car that has ended closes its connections. A process that does not read from one keeps it
in CLOSE_WAIT; one to a host that does not answer is in SYN_SENT, or sends again and again.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclscope.attach.blocked import blocked_socket
from ncclscope.model.snapshot import Source, Worker

NAME = "sockets"

_MOST_DESCRIPTORS = 4096
_MOST_BYTES = 1 << 22
_SHOWN = 8
_ESTABLISHED, _SYN_SENT, _CLOSE_WAIT, _LISTEN = 1, 2, 8, 10
_MANY_RETRIES = 3
_Accepted = tuple[tuple[int, ...], ...]
_INODE = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True)
class _Connection:
    local: tuple[str, int]
    remote: tuple[str, int]
    state: int
    retries: int
    inode: str


def lost_peers(pid: int, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return one line for each connection of a process whose other side does not answer.

    Args:
        pid: The process.
        proc: Mount point of procfs.

    Returns:
        Lines such as ``127.0.0.1:5555 has closed the connection, and nothing listens there``;
        none where nothing is lost, or the process may not be read.
    """
    home = proc / str(pid)
    inodes = _inodes(home)
    if not inodes:
        return ()
    table = [*_connections(home / "net/tcp"), *_connections(home / "net/tcp6")]
    listening = {one.local[1] for one in table if one.state == _LISTEN}
    lines = (_line(one, listening) for one in table if one.inode in inodes)
    return tuple(dict.fromkeys(line for line in lines if line))[:_SHOWN]


def accepted(ranks: Mapping[int, int], proc: Path = Path("/proc")) -> dict[int, _Accepted]:
    """Return whose connections each process has accepted, for each port that it listens on.

    gloo listens on a port of its own for each process group, and keeps its connections.

    Args:
        ranks: The ranks of this host, by pid.
        proc: Mount point of procfs.

    Returns:
        The peers' ranks by port, -1 for other processes, as `Worker.accepted` has them, by pid.
    """
    tables, owner = _tables(ranks, proc)
    return {pid: _accepted(table, owner) for pid, table in tables.items()}


def other_ends(ranks: Mapping[int, int], proc: Path = Path("/proc")) -> dict[int, int]:
    """Return the rank at the other end of the connection in which each main thread waits, by pid.

    Args:
        ranks: The ranks of this host, by pid.
        proc: Mount point of procfs.

    Returns:
        The ranks; processes that wait in none, or for another process, are left out.
    """
    waiting = {pid: inode for pid in ranks if (inode := blocked_socket(proc / str(pid)))}
    tables, owner = _tables(ranks, proc) if waiting else ({}, {})
    found = {}
    for pid, inode in waiting.items():
        for one in tables[pid]:
            other = owner.get((one.remote, one.local), ranks[pid])
            if one.inode == inode and other != ranks[pid]:
                found[pid] = other
    return found


def _tables(
    ranks: Mapping[int, int], proc: Path
) -> tuple[dict[int, list[_Connection]], dict[object, int]]:
    """Return the connections of each process, and the rank of each end that is established."""
    tables: dict[int, list[_Connection]] = {}
    for pid in ranks:
        home = proc / str(pid)
        inodes = _inodes(home)
        table = [*_connections(home / "net/tcp"), *_connections(home / "net/tcp6")]
        tables[pid] = [one for one in table if one.inode in inodes]
    owner: dict[object, int] = {
        (one.local, one.remote): ranks[pid]
        for pid, table in tables.items()
        for one in table
        if one.state == _ESTABLISHED
    }
    return tables, owner


def _accepted(table: Sequence[_Connection], owner: Mapping[object, int]) -> _Accepted:
    ports: dict[int, list[int]] = {one.local[1]: [] for one in table if one.state == _LISTEN}
    for one in table:
        if one.state == _ESTABLISHED and one.local[1] in ports:
            ports[one.local[1]].append(owner.get((one.remote, one.local), -1))
    return tuple(tuple(sorted(peers)) for _, peers in sorted(ports.items()) if peers)


def clients(pid: int, port: int, proc: Path = Path("/proc")) -> int:
    """Return how many connections a process has on a port of its own."""
    home = proc / str(pid)
    inodes = _inodes(home)
    table = [*_connections(home / "net/tcp"), *_connections(home / "net/tcp6")]
    own = (one for one in table if one.inode in inodes and one.state == _ESTABLISHED)
    return sum(one.local[1] == port for one in own)


def socket_source(workers: Sequence[Worker]) -> Source:
    """Return the source ``sockets``: how many connections are lost."""
    lost = sum(len(worker.lost_peers) for worker in workers)
    return Source(NAME, True, f"{lost} connections whose other side does not answer")


def _line(one: _Connection, listening: set[int]) -> str:
    address, port = one.remote
    where = f"{address}:{port}"
    if one.state == _CLOSE_WAIT:
        is_here = address.startswith("127.") or address in ("::1", one.local[0])
        gone = ", and nothing listens there" if is_here and port not in listening else ""
        return f"{where} has closed the connection{gone}"
    if one.state == _SYN_SENT:
        return f"{where} does not answer to a connect"
    if one.state == _ESTABLISHED and one.retries >= _MANY_RETRIES:
        return f"{where} has not acknowledged what was sent, {one.retries} times"
    return ""


def _inodes(home: Path) -> set[str]:
    found = set()
    try:
        with os.scandir(home / "fd") as descriptors:
            for number, one in enumerate(descriptors):
                if number >= _MOST_DESCRIPTORS:
                    break
                try:
                    match = _INODE.match(os.readlink(one.path))
                except OSError:
                    continue
                if match is not None:
                    found.add(match[1])
    except OSError:
        pass
    return found


def _connections(path: Path) -> Iterator[_Connection]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return
    for line in text.splitlines()[1:]:
        fields = line.split()
        try:
            yield _Connection(
                _address(fields[1]), _address(fields[2]), int(fields[3], 16),
                int(fields[6], 16), fields[9],
            )  # fmt: skip
        except (IndexError, ValueError):
            continue


def _address(spelled: str) -> tuple[str, int]:
    """Return address and port; the kernel prints words of 32 bits in its own byte order.

    Raises:
        ValueError: It is no address.
    """
    host, _, port = spelled.partition(":")
    words = bytes.fromhex(host)
    data = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    if len(data) == 4:
        return socket.inet_ntop(socket.AF_INET, data), int(port, 16)
    if data[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, data[12:]), int(port, 16)
    return socket.inet_ntop(socket.AF_INET6, data), int(port, 16)
