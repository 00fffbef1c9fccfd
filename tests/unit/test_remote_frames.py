"""Messages between a client and the server on a host, and what is none."""

from __future__ import annotations

import os
import threading
import zlib

import pytest

from ncclscope.errors import DamagedFileError
from ncclscope.remote.frames import (
    FAILED,
    GREETING,
    LONGEST,
    METHODS,
    OK,
    Frame,
    FrameReader,
    spell_frame,
)
from ncclscope.remote.pipe_server import serve
from ncclscope.remote.spelling import unpack

FRAMES = [Frame(OK, 1, b""), Frame(FAILED, 2, b"why"), Frame(OK, 1 << 31, bytes(range(256)) * 99)]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("banner", [b"", b"Welcome\nto node-a\n", b"\0nccl", GREETING[:-1]])
def test_frames_arrive_whole_in_any_pieces(size: int, banner: bytes) -> None:
    data = banner + GREETING + b"".join(map(spell_frame, FRAMES))
    reader = FrameReader(GREETING)

    found = [
        frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])
    ]

    assert found == FRAMES
    assert reader.greeted
    assert reader.lack == ""


HEADER = spell_frame(Frame(OK, 1, b""))[:-4]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"x" * (1 << 17), "it sends 'xxxx"),
        (b"Last login: \x1b[31mnever" + b" " * (1 << 17), r"it sends 'Last login: \\\\x1b\[31mn"),
        (GREETING + b"Goodbye\n", "it sends 'Goodbye' in place of a message"),
        (GREETING + b"\n", "it sends '' in place of a message"),
        (GREETING + HEADER + b"\xff\xff\xff\xff", "announces a message of 4,294,967,295 bytes"),
        (GREETING + HEADER + (LONGEST + 1).to_bytes(4, "big"), "announces a message of 67,108,865"),
    ],
)
def test_what_is_no_message_is_refused_at_once(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedFileError, match=reason):
        FrameReader(GREETING).feed(data)


@pytest.mark.parametrize(
    ("data", "lack"),
    [
        (b"", "it sent nothing"),
        (b"Hello\nWorld\n", "it sends 'Hello', and no message follows"),
        (GREETING, ""),
        (GREETING + spell_frame(FRAMES[1]), ""),
        (GREETING + spell_frame(FRAMES[1])[:5], "its answer broke off in a header"),
        (GREETING + spell_frame(FRAMES[1])[:-1], "its answer broke off after 2 of 3 bytes"),
    ],
)
def test_the_end_of_a_stream_says_what_it_lacks(data: bytes, lack: str) -> None:
    reader = FrameReader(GREETING)
    reader.feed(data)
    assert reader.lack == lack


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="too long"):
        spell_frame(Frame(OK, 1, bytes(LONGEST + 1)))


def test_a_message_that_would_fill_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zlib.compress(b"[" + b"[]," * 100 + b"0]")
    assert len(unpack(bomb)) == 101
    monkeypatch.setattr("ncclscope.remote.spelling._MOST_MEMORY", 8000)
    with pytest.raises(DamagedFileError, match="invalid message"):
        unpack(bomb)


def test_a_server_without_requests_ends() -> None:
    requests, requester = os.pipe()
    reader, answers = os.pipe()
    server = threading.Thread(target=serve, args=(["/nowhere"], requests, answers, 0.01))
    server.start()
    server.join(30)
    assert not server.is_alive()
    for pipe in (requests, requester, reader, answers):
        os.close(pipe)


def test_a_server_whose_answers_nobody_reads_ends() -> None:
    requests, requester = os.pipe()
    reader, answers = os.pipe()
    server = threading.Thread(target=serve, args=(["/nowhere"], requests, answers, 0.2))
    server.start()
    # More answers than a pipe holds; the requests themselves fit.
    for number in range(1500):
        os.write(requester, spell_frame(Frame(METHODS.index("report"), number, b"")))
    server.join(30)
    assert not server.is_alive()
    for pipe in (requests, requester, reader, answers):
        os.close(pipe)


def test_a_request_that_fails_is_answered() -> None:
    requests, requester = os.pipe()
    reader, answers = os.pipe()
    server = threading.Thread(target=serve, args=(["/nowhere"], requests, answers))
    server.start()
    for number, (kind, payload) in enumerate(
        [(99, b""), (METHODS.index("answer"), b"x"), (METHODS.index("hashes"), b"junk")]
    ):
        os.write(requester, spell_frame(Frame(kind, number, payload)))
    os.close(requester)
    server.join(30)
    os.close(answers)
    with open(reader, "rb") as stream:
        found = FrameReader(GREETING).feed(stream.read())
    os.close(requests)
    assert [(frame.kind, frame.number) for frame in found] == [
        (FAILED, 0),
        (FAILED, 1),
        (FAILED, 2),
    ]
    assert b"started anew" in found[1].payload
