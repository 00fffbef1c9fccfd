"""Transfers between engines in the ring: bounded, and never torn, whenever the process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ncclscope.model import Transfer
from ncclscope.ring import layout
from ncclscope.ring.transfers import TransferTable
from tests.support.programs import ROOT
from tests.support.rings import fill, read, tracer_in

pytestmark = pytest.mark.both_writers


def table_in(rings: Path) -> tuple[Path, TransferTable]:
    tracer = tracer_in(rings, details={"boot_id": ""})
    fill(tracer, tracer.communicator("k"), 1, 11)
    return Path(tracer.path), TransferTable(tracer.ring.path, tracer.ring.geometry)


def end(number: int, direction: str = "recv", **more: object) -> Transfer:
    fields: dict[str, object] = {"engine": "decode", "request": f"r{number}", **more}
    return Transfer(id=f"p{number}", direction=direction, **fields)  # type: ignore[arg-type]


def test_an_end_is_read_back_with_all_that_was_recorded(rings: Path) -> None:
    path, table = table_in(rings)
    table.put(
        end(1, peer="prefill", host="10.0.0.1", port=5601, blocks=4, bytes=65536, deadline_ns=7)
    )
    table.change("recv", "r1", state="started", phase="handshake")

    rank = read(path)
    (found,) = rank.transfers
    assert rank.records == 10
    assert (found.id, found.request, found.engine, found.peer) == ("p1", "r1", "decode", "prefill")
    assert (found.direction, found.state, found.phase) == ("recv", "started", "handshake")
    assert (found.host, found.port, found.blocks, found.bytes) == ("10.0.0.1", 5601, 4, 65536)
    assert 0 < found.begun_ns <= found.changed_ns
    assert found.deadline_ns == 7


def test_a_ring_without_transfers_has_no_section(rings: Path) -> None:
    tracer = tracer_in(rings)
    assert Path(tracer.path).stat().st_size == tracer.ring.geometry.total
    assert read(tracer.path).transfers == ()


def test_an_ended_transfer_makes_room_and_an_unfinished_one_stays(rings: Path) -> None:
    path, table = table_in(rings)
    for number in range(layout.MAX_TRANSFERS):
        table.put(end(number))
    table.change("recv", "r5", state="completed")
    table.change("recv", "r3", state="failed")
    table.put(end(5000))
    table.put(end(5001))
    found = {one.request: one.state for one in read(path).transfers}
    assert len(found) == layout.MAX_TRANSFERS
    assert found.keys() >= {"r4", "r5000", "r5001"}
    assert found.keys().isdisjoint({"r3", "r5"})

    table.put(end(5002))
    rank = read(path)
    assert "r5002" not in {one.request for one in rank.transfers}
    (entry,) = rank.details["unseen"]
    assert entry["text"].startswith("1 transfers between engines are not recorded")


def test_an_ended_transfer_does_not_change(rings: Path) -> None:
    path, table = table_in(rings)
    table.put(end(1))
    table.change("recv", "r1", state="completed")
    table.change("recv", "r1", state="failed")
    table.change("recv", "unknown", state="failed")
    assert [one.state for one in read(path).transfers] == ["completed"]


def test_a_text_that_is_too_long_is_cut_alike_at_both_ends(rings: Path) -> None:
    path, table = table_in(rings)
    long = "cmpl-" + "ä" * 200
    for direction in ("send", "recv"):
        table.put(Transfer(id=long, engine="e", direction=direction, request=long))
    one, other = read(path).transfers
    assert one.id == other.id
    assert long.startswith(one.id)
    assert len(one.id.encode()) in (111, 112)


@pytest.mark.parametrize("place", [0, 4, 5, 8, 20, 56, 170, 511])
def test_a_damaged_entry_is_no_transfer(rings: Path, place: int) -> None:
    path, table = table_in(rings)
    table.put(end(1))
    table.put(end(2))
    start = path.stat().st_size - layout.MAX_TRANSFERS * layout.TRANSFER_ENTRY.size
    with path.open("r+b") as file:
        file.seek(start + place)
        byte = file.read(1)[0]
        file.seek(start + place)
        file.write(bytes([byte ^ 0x55]))
    assert [one.request for one in read(path).transfers] == ["r2"]


def test_a_section_that_is_cut_short_is_read_as_far_as_it_goes(rings: Path) -> None:
    path, table = table_in(rings)
    for number in range(20):
        table.put(end(number))
    size = path.stat().st_size - layout.MAX_TRANSFERS * layout.TRANSFER_ENTRY.size
    os.truncate(path, size + 10 * layout.TRANSFER_ENTRY.size + 100)
    assert len(read(path).transfers) == 10
    os.truncate(path, size)
    assert read(path).transfers == ()


PROGRAM = textwrap.dedent("""
    import sys
    from ncclscope import Tracer
    from ncclscope.model import Transfer
    from ncclscope.ring.transfers import TransferTable
    tracer = Tracer(sys.argv[1], rank=0, world_size=1)
    table = TransferTable(tracer.ring.path, tracer.ring.geometry)
    print(tracer.path, flush=True)
    number = 0
    while True:
        number += 1
        text = chr(97 + number % 26) * 100
        table.put(Transfer(id=text, engine=text[:64], direction="recv", request=f"r{number % 50}"))
        if number == 2000:
            print("busy", flush=True)
""")


def test_a_killed_process_leaves_whole_transfers(rings: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(rings)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert program.stdout is not None
    path = Path(program.stdout.readline().strip())
    assert program.stdout.readline() == "busy\n"
    while_it_writes = read(path).transfers
    program.send_signal(signal.SIGKILL)
    program.wait()
    program.stdout.close()
    found = read(path).transfers
    assert len(found) >= 49  # the one being stored may be torn
    assert len(while_it_writes) >= 49
    for one in (*found, *while_it_writes):
        assert set(one.id) == set(one.engine)
