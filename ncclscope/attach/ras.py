"""Query NCCL's RAS subsystem about the job.

Each process of an NCCL job runs a RAS thread (since 2.24). The processes of a host share a
socket, by default localhost:28028, that answers one-line requests. This module speaks the
protocol of NCCL's ``ncclras``: ``CLIENT PROTOCOL 2``, ``TIMEOUT n``, ``SET FORMAT json`` (since
2.28.7; older versions reject it and answer in text) and ``VERBOSE STATUS``. The server closes
the connection at the end of its answer.

RAS counts the calls that each rank has launched per function. It does not see their order, nor
calls captured in CUDA graphs. A job without RAS errors can therefore still have diverged.
"""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ncclscope.model.snapshot import RasAnswer, RasComm, RasRank
from ncclscope.untrusted import MAX_RANKS, integer, number, parse, printable

DEFAULT_ADDRESS = ("localhost", 28028)
_PROTOCOL = 2
_PEERS_LIMIT = 2
"""Seconds that NCCL may take to query the other processes."""
_MOST_BYTES = 1 << 25
_MOST_PIDS = 1 << 32

_COMM = re.compile(r"^#\d+-\d+ \(([0-9a-f]+)\) (INCOMPLETE|ERROR|MISMATCH)")
_RANK = re.compile(
    r"^  Rank (\d+)(?: has (?:launched up to operation (\d+)|status \S+|not launched any "
    r"operations))? -- (?:GPU .* managed by process (\d+) on node (\S+)|\[process)"
)
_GROUP = re.compile(r"^  (\d+) ranks have (?:launched up to operation (\d+)|not launched any op)")
_FUNCTION = re.compile(r"different (\w+) operation counts")
_MISSING_COMMA = re.compile(r'(["\d\]}])(\s*\n\s*")')
"""NCCL 2.28.9 omits a comma before the status of a rank that does not answer."""
_VERSION = re.compile(r"^NCCL version (\S+)", re.MULTILINE)
_SIZES = re.compile(r"^ *\d+ +(\d+) +\d+ +\S+ +\d+ +\d+ +\w+ +\w+ *$", re.MULTILINE)


def parse_address(value: str | None) -> tuple[str, int]:
    """Parse ``NCCL_RAS_ADDR``: ``host:port`` or ``[address]:port``."""
    if not value:
        return DEFAULT_ADDRESS
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port[:6]) < 65536:
        return DEFAULT_ADDRESS
    return host.strip("[]") or DEFAULT_ADDRESS[0], int(port)


def ask_ras(address: tuple[str, int], limit: float = 8.0) -> RasAnswer | str:
    """Query RAS once, within a time limit.

    Args:
        address: Host and port.
        limit: Seconds for connecting and for the whole answer.

    Returns:
        The answer, or the reason why there is none.
    """
    where = f"{address[0]}:{address[1]}"
    deadline = time.monotonic() + limit
    try:
        with socket.create_connection(address, timeout=min(1.0, limit)) as connection:
            talk = Talk(connection, deadline)
            if not talk.greet():
                return f"the server on {where} is not NCCL's RAS"
            talk.ask(f"TIMEOUT {_PEERS_LIMIT}")
            talk.ask("SET FORMAT json")
            talk.send("VERBOSE STATUS")
            text = talk.rest()
    except ConnectionRefusedError:
        return f"no server listens on {where}"
    except TimeoutError:
        return f"{where} did not answer in time"
    except OSError as error:
        return f"{where} cannot be queried: {printable(error.strerror or str(error))}"
    answer = parse_answer(text)
    if not answer.is_json and not answer.version:
        return f"the answer of {where} cannot be read"
    return answer


class Talk:
    """One connection with a deadline for all its reads together."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._ahead = b""

    def greet(self) -> bool:
        """Begin to talk; return whether the server is NCCL's RAS."""
        greeting = self.ask(f"CLIENT PROTOCOL {_PROTOCOL}")
        return greeting.upper().startswith("SERVER PROTOCOL")

    def send(self, line: str) -> None:
        """Send one line."""
        self._connection.sendall(f"{line}\n".encode("ascii"))

    def ask(self, line: str) -> str:
        """Send one line and return the first line of the answer."""
        self.send(line)
        while b"\n" not in self._ahead:
            more = self._receive()
            if not more:
                raise ConnectionResetError("the connection was closed")
            self._ahead += more
            if len(self._ahead) > _MOST_BYTES:
                raise OSError("the answer is too long")
        answer, _, self._ahead = self._ahead.partition(b"\n")
        return answer.decode("utf-8", "replace")

    def rest(self) -> str:
        """Return what follows until the server closes the connection."""
        parts = [self._ahead]
        size = len(self._ahead)
        while size <= _MOST_BYTES:
            more = self._receive()
            if not more:
                break
            parts.append(more)
            size += len(more)
        return b"".join(parts).decode("utf-8", "replace")

    def _receive(self) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv(1 << 16)


def parse_answer(text: str) -> RasAnswer:
    """Parse an answer in JSON or in text."""
    start = text.find("{")
    if start >= 0 and not text[:start].strip().startswith("NCCL version"):
        document = None
        for whole in (text[start:], _MISSING_COMMA.sub(r"\1,\2", text[start:])):
            with contextlib.suppress(ValueError):
                document = parse(whole)
                break
        if isinstance(document, dict) and isinstance(document.get("communicators"), list):
            return _from_json(text, document)
    return _from_text(text)


def _from_json(text: str, document: Mapping[str, Any]) -> RasAnswer:
    comms = []
    for comm in document["communicators"]:
        if not isinstance(comm, dict):
            continue
        ranks = [_rank(rank, missing=False) for rank in _objects(comm.get("ranks"))]
        ranks += [_rank(rank, missing=True) for rank in _objects(comm.get("missing_ranks"))]
        comms.append(
            RasComm(
                hash=printable(str(comm.get("hash", ""))),
                size=number(comm.get("size")),
                ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
            )
        )
    return RasAnswer(
        text=text,
        version=printable(str(document.get("nccl_version", ""))),
        comms=tuple(comms),
        is_json=True,
        communicators=len(comms),
    )


def _rank(rank: Mapping[str, Any], *, missing: bool) -> RasRank:
    status = rank.get("status")
    status = status if isinstance(status, dict) else {}
    counts = None if missing else rank.get("collective_counts")
    return RasRank(
        rank=number(rank.get("rank")),
        host=printable(str(rank.get("host", ""))),
        pid=number(rank.get("pid"), _MOST_PIDS),
        counts={
            printable(str(name)): count
            for name, value in (counts.items() if isinstance(counts, dict) else ())
            if (count := integer(value)) is not None
        },
        async_error=0 if missing else integer(status.get("async_error")) or 0,
        aborted=not missing and status.get("abort_flag") is True,
        missing=missing,
        dead=missing and status.get("considered_dead") is True,
    )


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _from_text(text: str) -> RasAnswer:
    """Parse a text answer, which names only the ranks that differ."""
    found: dict[str, dict[int, RasRank]] = {}
    groups: dict[str, dict[str, list[tuple[int, int]]]] = {}
    remarks: list[str] = []
    hash, what, function = "", "", ""
    in_report = False
    for line in text.splitlines():
        in_report = in_report or line.startswith("Errors")
        comm = _COMM.match(line)
        if comm:
            hash, what, function = f"0x{comm[1].lstrip('0')}", comm[2], ""
            found.setdefault(hash, {})
            groups.setdefault(hash, {})
        named = _FUNCTION.search(line)
        if named:
            function = named[1]
        group = _GROUP.match(line)
        if group and hash and function:
            many, count = int(group[1][:9]), int((group[2] or "0")[:18])
            groups[hash].setdefault(function, []).append((many, count))
        rank = _RANK.match(line)
        if rank and hash and int(rank[1][:9]) < MAX_RANKS:
            known = found[hash]
            one = _textual(rank, what, function)
            before = known.get(one.rank)
            known[one.rank] = _joined(before, one) if before else one
        if in_report and line.strip("= ") not in ("", "Errors", "Warnings"):
            remarks.append(printable(line.rstrip()))
    version = _VERSION.search(text)
    return RasAnswer(
        text=text,
        version=printable(version[1]) if version else "",
        comms=tuple(
            RasComm(
                hash,
                0,
                tuple(ranks[number] for number in sorted(ranks)),
                {name: max(counts)[1] for name, counts in groups[hash].items()},
            )
            for hash, ranks in found.items()
        ),
        remarks=tuple(remarks[:200]),
        communicators=sum(int(count[:9]) for count in _SIZES.findall(text)),
    )


def _textual(rank: re.Match[str], what: str, function: str) -> RasRank:
    return RasRank(
        rank=int(rank[1][:9]),
        pid=int((rank[3] or "0")[:10]),
        host=printable(rank[4] or ""),
        counts={function: int((rank[2] or "0")[:18])} if what == "MISMATCH" and function else {},
        async_error=1 if what == "ERROR" else 0,
        missing=what == "INCOMPLETE",
    )


def _joined(one: RasRank, other: RasRank) -> RasRank:
    """Return what two lines say of a rank."""
    names = [field.name for field in fields(RasRank)]
    either = {name: getattr(one, name) or getattr(other, name) for name in names}
    return RasRank(**{**either, "counts": {**one.counts, **other.counts}})
