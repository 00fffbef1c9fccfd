"""Rings of versions 1 and 2, which the writers of 0.1 made, stay readable."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.ring import layout
from ncclscope.ring.reader import RingFile
from tests.support.rings import SMALL, check_log, is_call

DATA = Path(__file__).parents[1] / "data" / "rings"
CALLS = 1300
RECORDS = CALLS + 30 + 1 + 1
"""Calls on both communicators, a send, and a step."""


def unpacked(directory: Path, version: int) -> Path:
    path = directory / f"version-{version}{layout.SUFFIX}"
    path.write_bytes(gzip.decompress((DATA / f"{path.name}.gz").read_bytes()))
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_a_ring_of_an_earlier_version_is_read(tmp_path: Path, version: int) -> None:
    path = unpacked(tmp_path, version)
    replays = 3 * (version == 2)

    (rank,) = open_run(path).ranks

    records = RECORDS + replays
    assert (rank.records, rank.lost) == (SMALL, records - SMALL)
    assert (rank.host, rank.world_size, rank.labels) == ("node-7", 1, {"tp": "0"})
    assert rank.exited
    first = rank.lost + 1
    log, other = rank.logs["k"], rank.logs["other"]
    if version == 1:
        check_log(log, first, CALLS)
    assert all(is_call(call, call.seq) for call in log.span(first, CALLS + 1))
    assert (log.first, log.calls) == (first, CALLS + 5 * replays)
    assert {*log.threads(first, log.calls + 1), *other.threads(1, 31)} == {0}
    assert other.communicator.label == "dp:1"
    assert [call.sizes for call in other.span(1, 31)] == [(number, 2) for number in range(1, 31)]
    assert {call.out_shape for call in other.span(1, 31)} == {(5,)}
    (sent,) = rank.p2p["k"]
    assert (sent.op, sent.shape, sent.dtype, sent.site) == ("send", (7,), "int32", "p.py:3 h")
    assert [(step.number, step.tokens) for step in rank.steps] == [(12, 34)]
    assert rank.activities["step"].number == 811


def test_the_replays_of_a_ring_of_version_2_are_read_call_by_call(tmp_path: Path) -> None:
    (rank,) = open_run(unpacked(tmp_path, 2)).ranks

    log = rank.logs["k"]
    calls = list(log.span(CALLS + 1, log.calls + 1))
    assert [call.shape for call in calls] == [(rows, 2) for rows in range(1, 6)] * 3
    assert [call.signature for call in calls] == [call.sign() for call in calls]
    assert {call.state.word for call in calls} == {"completed"}
    assert rank.graphs[1].length == 5


@pytest.mark.parametrize("version", [1, 2])
def test_nothing_of_an_earlier_version_counts_as_checked(tmp_path: Path, version: int) -> None:
    with RingFile(unpacked(tmp_path, version)) as ring:
        assert not ring.geometry.checked
        assert ring.geometry.comms == layout.OLD_COMMS
        assert (ring.clock, ring.count) == (0, -1)
        assert (ring.holes, ring.damage) == ([], set())


def test_a_text_without_a_checksum_is_read(tmp_path: Path) -> None:
    """As in rings of the first releases of 0.1, in which that field is zero."""
    path = unpacked(tmp_path, 1)
    with RingFile(path) as ring:
        before, offset = ring.texts, ring.geometry.strings
    data = bytearray(path.read_bytes())
    while True:
        size, kind, zero, checksum = layout.OLD_ENTRY.unpack_from(data, offset)
        if not kind:
            break
        assert checksum
        layout.OLD_ENTRY.pack_into(data, offset, size, kind, zero, 0)
        offset += -(-(layout.OLD_ENTRY.size + size) // 8) * 8
    path.write_bytes(data)

    with RingFile(path) as ring:
        assert ring.texts == before


def test_a_changed_text_of_an_earlier_version_is_no_other_text(tmp_path: Path) -> None:
    path = unpacked(tmp_path, 1)
    data = path.read_bytes()
    assert data.count(b"broadcast") == 1
    path.write_bytes(data.replace(b"broadcast", b"broadcasu"))

    with RingFile(path) as ring:
        assert "" in ring.texts[layout.KIND_OP]
        assert "broadcasu" not in ring.texts[layout.KIND_OP]
