"""NCCL's RAS: answers recorded on four H200s, and a real TCP server that speaks its protocol.

The server is small and ours, since no NCCL runs here: it answers line by line as NCCL's does,
and what it answers was recorded from NCCL 2.28.9.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ncclscope.attach.ras import DEFAULT_ADDRESS, ask_ras, parse_address, parse_answer
from ncclscope.engine.processes.device_verdict import compare_ras_counts
from ncclscope.model.snapshot import RasAnswer, Snapshot
from ncclscope.readers.bundle import read_snapshot
from tests.support.snapshots import DATA, in_collective, snapshot, worker

JSON = (DATA / "ras_mismatch.json").read_text()
TEXT = (DATA / "ras_mismatch.txt").read_text()


@contextmanager
def server(answer: str, *, knows_json: bool = True, says: bytes = b"") -> Iterator[tuple[str, int]]:
    """Speak RAS's protocol to one client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rwb") as talk:
                if says:
                    talk.write(says)
                    talk.flush()
                    return
                for line in talk:
                    command = line.decode().strip()
                    if command == "VERBOSE STATUS":
                        talk.write(answer.encode())
                        return
                    known = not command.startswith("SET FORMAT") or knows_json
                    reply = "SERVER PROTOCOL 2" if command.startswith("CLIENT") else "OK"
                    talk.write(f"{reply if known else 'ERROR: Unknown command'}\n".encode())
                    talk.flush()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            thread.join(10)


def test_json_names_every_rank() -> None:
    answer = parse_answer(JSON)

    assert (answer.is_json, answer.version, answer.communicators) == (True, "2.28.9", 1)
    (comm,) = answer.comms
    assert (comm.hash, comm.size, len(comm.ranks)) == ("0x68d65a60c4d34d0a", 4, 4)
    assert [rank.counts["AllReduce"] for rank in comm.ranks] == [21, 21, 20, 21]
    assert [rank.pid for rank in comm.ranks] == [2660, 2661, 2662, 2663]


def test_text_names_those_that_differ() -> None:
    answer = parse_answer(TEXT)

    assert (answer.is_json, answer.version, answer.communicators) == (False, "2.28.9", 1)
    (comm,) = answer.comms
    (rank,) = comm.ranks
    assert (comm.hash, rank.rank, rank.pid) == ("0x68d65a60c4d34d0a", 2, 2662)
    assert rank.counts == {"AllGather": 1, "AllReduce": 20}
    assert comm.usual == {"AllGather": 0, "AllReduce": 21}


@pytest.mark.parametrize("text", [JSON, TEXT])
def test_both_single_out_the_same_rank(text: str) -> None:
    evidence = compare_ras_counts(with_answers(parse_answer(text)))

    assert evidence is not None
    assert evidence.ranks == (2,)
    assert "rank 2 launched 1 (the others 0) AllGather" in evidence.says


def with_answers(answer: RasAnswer, before: RasAnswer | None = None) -> Snapshot:
    workers = [
        replace(worker(r, in_collective("all_reduce", 10)), pid=2660 + r, world_size=4)
        for r in range(4)
    ]
    return snapshot(workers, ras=answer, ras_before=before)


def test_numbers_that_are_too_long_are_cut() -> None:
    """Python refuses to read more than 4,300 digits."""
    long = "9" * 5000
    for number in ("2662", "20", "2"):
        answer = parse_answer(TEXT.replace(number, long))
        assert all(0 <= rank.pid < 1 << 64 for comm in answer.comms for rank in comm.ranks)


def test_counts_that_move_are_no_difference() -> None:
    """Recorded of a healthy loop: the ranks are asked one after the other."""
    seen = read_snapshot(DATA / "h200_loop.json")
    assert seen.ras is not None
    (comm,) = seen.ras.comms
    assert len({rank.counts["AllGather"] for rank in comm.ranks}) == 2
    earlier = [
        replace(rank, counts={**rank.counts, "AllGather": rank.counts["AllGather"] - 99})
        for rank in comm.ranks
    ]
    before = replace(seen.ras, comms=(replace(comm, ranks=tuple(earlier)),))

    evidence = compare_ras_counts(replace(seen, ras_before=before))

    assert evidence is not None
    assert evidence.ranks == ()


def test_missing_and_dead_ranks_are_named() -> None:
    document = json.loads(JSON)
    comm = document["communicators"][0]
    gone = comm["ranks"].pop(1)
    gone["status"] = {"unresponsive": True, "considered_dead": True}
    comm["missing_ranks"] = [gone]
    evidence = compare_ras_counts(with_answers(parse_answer(json.dumps(document))))

    assert evidence is not None
    assert (evidence.kind, evidence.ranks) == ("dead_rank", (1,))
    assert "reported dead" in evidence.says


def test_an_answer_in_which_nccl_leaves_out_a_comma_is_read() -> None:
    """As NCCL 2.28.9 gave it, of a job whose rank 1 had been killed."""
    text = (DATA / "ras_missing.json").read_text()
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(text)
    answer = parse_answer(text)
    living = [
        replace(worker(rank, in_collective("all_reduce", 10)), pid=pid, world_size=4)
        for rank, pid in ((0, 2079), (2, 2082), (3, 2083))
    ]
    evidence = compare_ras_counts(snapshot(living, ras=answer))

    assert (answer.is_json, answer.version, answer.communicators) == (True, "2.28.9", 6)
    assert evidence is not None
    assert (evidence.kind, evidence.ranks) == ("dead_rank", (1,))


def test_counts_that_differ_in_a_pair_single_out_nobody() -> None:
    """Rank 0 had posted an all_gather, its peer an all_reduce."""
    answer = parse_answer((DATA / "ras_pair.json").read_text())
    evidence = compare_ras_counts(with_answers(answer))

    assert evidence is not None
    assert (evidence.odd, evidence.ranks) == (True, ())
    assert "counts of AllGather differ on 0xd8a84e2f5b80cc9a" in evidence.says
    assert "counts of AllReduce differ on 0xd8a84e2f5b80cc9a" in evidence.says
    assert evidence.says.count("differ") == 2
    assert "launched" not in evidence.says


def test_incomplete_communicators_are_read_from_text() -> None:
    text = TEXT.replace(
        "Errors\n======\n",
        "Errors\n======\n\n#0-0 (68d65a60c4d34d0a) INCOMPLETE\n"
        "  Missing communicator data from 1 rank\n  The missing rank:\n"
        "  Rank 3 -- GPU 3 managed by process 2663 on node 192.0.2.2\n",
        1,
    )
    evidence = compare_ras_counts(with_answers(parse_answer(text)))

    assert evidence is not None
    assert evidence.ranks == (3,)


def test_an_asynchronous_error_is_named() -> None:
    document = json.loads(JSON.replace('"AllReduce": 20', '"AllReduce": 21'))
    for rank in document["communicators"][0]["ranks"]:
        rank["collective_counts"]["AllGather"] = 0
    document["communicators"][0]["ranks"][3]["status"]["async_error"] = 6
    evidence = compare_ras_counts(with_answers(parse_answer(json.dumps(document))))

    assert evidence is not None
    assert evidence.ranks == (3,)
    assert "error" in evidence.says


def test_equal_counts_prove_nothing() -> None:
    document = json.loads(JSON)
    for rank in document["communicators"][0]["ranks"]:
        rank["collective_counts"] = {"AllReduce": 21}
    evidence = compare_ras_counts(with_answers(parse_answer(json.dumps(document))))

    assert evidence is not None
    assert (evidence.ranks, evidence.odd) == ((), None)
    assert "order" in evidence.says


def test_counts_that_move_are_left_out() -> None:
    answer = parse_answer(JSON)
    (comm,) = answer.comms
    first, *rest = comm.ranks
    earlier = replace(comm, ranks=(replace(first, counts={"AllReduce": 3}), *rest))

    moving = compare_ras_counts(with_answers(answer, replace(answer, comms=(earlier,))))
    at_rest = compare_ras_counts(with_answers(answer, answer))

    assert moving is not None
    assert at_rest is not None
    assert (moving.odd, moving.ranks) == (None, ())
    assert (at_rest.odd, at_rest.ranks) == (True, (2,))


def test_members_that_cannot_be_named_single_out_no_rank() -> None:
    answer = parse_answer(JSON)
    (comm,) = answer.comms
    elsewhere = replace(comm, size=8, ranks=tuple(replace(r, pid=0) for r in comm.ranks))

    evidence = compare_ras_counts(with_answers(replace(answer, comms=(elsewhere,))))

    assert evidence is not None
    assert (evidence.odd, evidence.ranks) == (True, ())
    assert "member 2 launched 20 (the others 21) AllReduce" in evidence.says


# --- over a socket ----------------------------------------------------------------------------


def test_it_is_asked_for_json() -> None:
    with server(JSON) as address:
        answer = ask_ras(address)

    assert isinstance(answer, RasAnswer)
    assert answer.is_json


def test_one_that_knows_no_json_answers_in_text() -> None:
    with server(TEXT, knows_json=False) as address:
        answer = ask_ras(address)

    assert isinstance(answer, RasAnswer)
    assert (answer.is_json, len(answer.comms)) == (False, 1)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()

    assert ask_ras(address) == f"no server listens on 127.0.0.1:{address[1]}"


def test_somebody_else_listens() -> None:
    with server("", says=b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        answer = ask_ras(address)

    assert isinstance(answer, str)
    assert "not NCCL's RAS" in answer


def test_one_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        answer = ask_ras(address, limit=0.2)

    assert answer == f"127.0.0.1:{address[1]} did not answer in time"


@pytest.mark.parametrize("answer", ["", "{", "\x00\xff garbage\n", '[{"communicators": []}]'])
def test_garbage_is_reported_in_one_line(answer: str) -> None:
    with server(answer) as address:
        reason = ask_ras(address)

    assert reason == f"the answer of 127.0.0.1:{address[1]} cannot be read"


@pytest.mark.parametrize("text", ["", "{", '{"communicators": 3}', '{"communicators": [[], 4]}'])
def test_nonsense_is_no_answer(text: str) -> None:
    assert parse_answer(text).comms == ()


def test_addresses() -> None:
    assert parse_address(None) == parse_address("nonsense") == DEFAULT_ADDRESS
    assert parse_address("10.0.0.1:29") == ("10.0.0.1", 29)
    assert parse_address("[::1]:30") == ("::1", 30)
