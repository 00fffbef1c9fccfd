"""A dump says the same as torch pickles it, as Python pickles it and as JSON."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runners.dumps import job_dump, pickled
from ncclscope.errors import DamagedFileError
from ncclscope.model import State
from ncclscope.readers.budget import Budget
from ncclscope.readers.flight_recorder.dump import Dump
from ncclscope.readers.flight_recorder.entry import Entry
from ncclscope.readers.flight_recorder.log import find_sites
from ncclscope.readers.flight_recorder.reader import _parsed


def entries_of(dump: Dump) -> list[tuple[Any, ...]]:
    """Everything that a dump says, with stacks as the line that they come to."""

    def plain(entry: Entry) -> tuple[Any, ...]:
        return (*entry[:-1], find_sites(entry.frames))

    return [
        (group, list(map(plain, held.calls)), list(map(plain, held.sent)), held.reached)
        for group, held in dump.groups.items()
    ]


def read(data: bytes) -> Dump:
    return _parsed(data, Path("it"), Budget("it", len(data)))[1]


WRITTEN = {
    "python, protocol 2": lambda value: pickle.dumps(value, 2),
    "python, protocol 5": lambda value: pickle.dumps(value, 5),
    "json": lambda value: json.dumps(value).encode(),
}


def plain(value: dict[str, Any]) -> None:
    del value


def sends(value: dict[str, Any]) -> None:
    for number, entry in enumerate(value["entries"][50:90:3], 1):
        entry |= {"profiling_name": "nccl:send 0->1", "is_p2p": True, "p2p_seq_id": number}


def given_up(value: dict[str, Any]) -> None:
    value["entries"][-1] |= {"state": "started", "retired": True}


def wide_numbers(value: dict[str, Any]) -> None:
    for number, entry in enumerate(value["entries"]):
        entry["record_id"] += 70_000
        entry["pg_id"] += 300
        entry["collective_seq_id"] += 1 << 40
        entry["time_created_ns"] = number  # no time since 1970


def below_nothing(value: dict[str, Any]) -> None:
    value["entries"][60]["collective_seq_id"] = -5


def new_text(value: dict[str, Any]) -> None:
    value["entries"][70] |= {"profiling_name": "nccl:broadcast"}


def splits(value: dict[str, Any]) -> None:
    """As format 2.11 has them: beside the shapes, of some calls."""
    for place in range(20, 180, 3):
        fields = list(value["entries"][place].items())
        after = [name for name, _ in fields].index("output_dtypes") + 1
        fields[after:after] = [("input_split_sizes", [1, 2]), ("output_split_sizes", [2, 70_000])]
        value["entries"][place] = dict(fields)
        value["entries"][place]["profiling_name"] = "nccl:all_to_all_single"


def durations(value: dict[str, Any]) -> None:
    for entry in value["entries"][::2]:
        entry["duration_ms"] = 0.25


def long_ago(value: dict[str, Any]) -> None:
    value["entries"][-1]["time_discovered_started_ns"] = 1_800_000_000_000_000_000


def no_stacks(value: dict[str, Any]) -> None:
    for entry in value["entries"]:
        del entry["frames"]


@pytest.mark.parametrize(
    "changed",
    [
        plain,
        sends,
        given_up,
        wide_numbers,
        below_nothing,
        new_text,
        splits,
        durations,
        long_ago,
        no_stacks,
    ],
)
@pytest.mark.parametrize("written", WRITTEN)
def test_it_says_the_same(changed: Any, written: str) -> None:
    value = job_dump(rank=5, ranks=16, entries=200, wrong=150)
    changed(value)

    torch, other = read(pickled(value)), read(WRITTEN[written](value))

    assert entries_of(torch) == entries_of(other)
    for name in ("whole", "newest_ns", "pace_ns", "timed_out", "tells", "splits"):
        assert getattr(torch, name) == getattr(other, name), name
    assert torch.splits == (changed is splits)
    assert (torch.timed_out > 0) == (changed in (given_up, long_ago, wide_numbers))


def test_what_was_changed_is_in_it() -> None:
    value = job_dump(rank=5, ranks=16, entries=200, wrong=None)
    sends(value)
    given_up(value)

    dump = read(pickled(value))

    calls = [entry for held in dump.groups.values() for entry in held.calls]
    assert sum(len(held.sent) for held in dump.groups.values()) == 14
    assert sum(entry.state is State.STARTED for entry in calls) == dump.timed_out == 1


@pytest.mark.parametrize("place", [0, 199])
def test_a_dump_without_its_first_or_last_record_is_not_whole(place: int) -> None:
    value = job_dump(rank=5, ranks=16, entries=200, wrong=None)
    assert read(pickled(value)).whole
    value["entries"][place]["record_id"] += 1
    assert not read(pickled(value)).whole


def test_gathers_and_scatters_say_how_many_members_there_are() -> None:
    dump = read(pickled(job_dump(rank=5, ranks=16, entries=200, wrong=None)))

    sizes = {
        (group.desc, entry.posted.op): entry.posted.size
        for group, held in dump.groups.items()
        for entry in held.calls
    }
    assert {size for (_, op), size in sizes.items() if op == "all_reduce"} == {0}
    assert sizes["tp", "all_gather"] == sizes["tp", "reduce_scatter"] == 8
    assert sizes["dp", "all_gather"] == 2


@pytest.mark.parametrize("end", [-1, -2, -40, -4000])
def test_a_torn_one_is_not_taken(end: int) -> None:
    data = pickled(job_dump(rank=0, ranks=8, entries=200, wrong=None))

    with pytest.raises(DamagedFileError):
        read(data[:end])
