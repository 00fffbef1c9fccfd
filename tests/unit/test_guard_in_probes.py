"""Errors of the guard pass through the barrier around the probes; nothing is posted then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclscope.errors import DivergenceError
from ncclscope.tracing.tracer import Comm, Tracer
from ncclscope_patches.probes.posting import put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import Handle, Handles, record
from tests.support.rings import tracer_in


class Library:
    """In place of what a probe reaches into: counts what is really posted."""

    def __init__(self) -> None:
        self.posted: list[int] = []

    def all_reduce(self, rows: int) -> str:
        self.posted.append(rows)
        return "posted"


class Probe(Patch):
    name = "of a test"
    target = "none"

    def __init__(self) -> None:
        super().__init__()
        self.active = True


Install = Callable[[Probe, type[Library], Handles], None]


def by_posting(probe: Probe, library: type[Library], handles: Handles) -> None:
    """As the probes of pynccl and of torch.distributed do it."""
    put_posting(probe, library, "all_reduce", _read, handles)


def by_replacing(probe: Probe, library: type[Library], handles: Handles) -> None:
    """As the probes of operators do it."""

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return record(handles.of(args[0]), _read(args, kwargs), sys._getframe(2))

    probe.replace(library, "all_reduce", before, lambda token, result: None)


def by_scope(probe: Probe, library: type[Library], handles: Handles) -> None:
    """As the probe of pynccl does it for what is made of several calls."""

    def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return record(handles.of(args[0]), _read(args, kwargs), sys._getframe(2))

    probe.put(library, "all_reduce", probe.guard_scope(library.all_reduce, enter, lambda _: None))


def _read(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return "all_reduce", (args[1], 2), "float32", "sum"


@pytest.mark.parametrize("install", [by_posting, by_replacing, by_scope])
def test_the_call_is_not_made_and_the_probe_lives_on(
    rings: Path, monkeypatch: pytest.MonkeyPatch, install: Install
) -> None:
    monkeypatch.setenv("NCCLSCOPE_GUARD", "raise")
    (peer, theirs), (tracer, comm) = [_rank(rings, rank) for rank in (0, 1)]
    probe, library = Probe(), type("Library", (Library,), {})
    install(probe, library, Handles(lambda _: Handle(tracer, comm)))
    mine = library()
    for rows in (1, 2):
        peer.record(theirs, "all_reduce", shape=(rows, 2), dtype="float32", redop="sum")
    assert mine.all_reduce(1) == "posted"

    with pytest.raises(DivergenceError, match=r"call 2: rank 1 posted all_reduce sum \[9,2\]"):
        mine.all_reduce(9)

    assert mine.posted == [1]
    assert probe.active
    assert "probe_failed" not in tracer.ring._about


def _rank(directory: Path, rank: int) -> tuple[Tracer, Comm]:
    tracer = tracer_in(directory, rank=rank, world_size=2)
    return tracer, tracer.communicator("k", "tp:0", [0, 1], "nccl")
