"""Tables of a run for pandas, written as Parquet or CSV; docs/export.md describes each column."""

from __future__ import annotations

import bisect
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclscope.errors import UsageError
from ncclscope.model import Run
from ncclscope.model.signature import P2P_OPS
from ncclscope.private import open_private

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: dict[str, dict[str, str]] = {
    "calls": {
        "rank": "Int64",
        "comm": "string",
        "label": "string",
        "seq": "Int64",
        "position": "Int64",
        "p2p": "boolean",
        "op": "string",
        "dtype": "string",
        "redop": "string",
        "root": "Int64",
        "peer": "Int64",
        "numel": "Int64",
        "shape": "object",
        "sizes": "object",
        "out_shape": "object",
        "out_sizes": "object",
        "site": "string",
        "time_ns": "Int64",
        "state": "string",
        "captured": "boolean",
        "group": "Int64",
        "graph": "Int64",
        "replay": "Int64",
        "graph_call": "Int64",
        "step": "Int64",
        "signature": "UInt64",
    },
    "ranks": {
        "rank": "Int64",
        "world_size": "Int64",
        "host": "string",
        "pid": "Int64",
        "gpu": "Int64",
        "labels": "string",
        "records": "Int64",
        "lost": "Int64",
        "window": "boolean",
        "started_ns": "Int64",
        "last_seen_ns": "Int64",
        "exited": "boolean",
        "alive": "boolean",
        "source": "string",
    },
    "communicators": {
        "comm": "string",
        "label": "string",
        "kind": "string",
        "backend": "string",
        "ranks": "object",
        "size": "Int64",
    },
    "members": {
        "comm": "string",
        "label": "string",
        "rank": "Int64",
        "calls": "Int64",
        "first": "Int64",
        "p2p": "Int64",
    },
    "steps": {
        "rank": "Int64",
        "step": "Int64",
        "position": "Int64",
        "tokens": "Int64",
        "dummy": "boolean",
    },
}
"""Columns of each table and their pandas types, in order. Any value may be missing."""

LISTS = frozenset({"shape", "sizes", "out_shape", "out_sizes", "ranks"})
"""Columns of type ``object``: lists of integers, in CSV written as JSON."""

_FORMULA = ("=", "+", "-", "@")
"""Prefixes of a text that a spreadsheet would evaluate."""
Rows = list[tuple[Any, ...]]


def tables(run: Run) -> dict[str, pd.DataFrame]:
    """Return all tables of a run by name, empty ones included."""
    made: dict[str, Callable[[Run], Rows]] = {
        "calls": _calls,
        "ranks": _ranks,
        "communicators": _communicators,
        "members": _members,
        "steps": _steps,
    }
    return {name: _frame(make(run), COLUMNS[name]) for name, make in made.items()}


def write_parquet(run: Run, directory: Path) -> None:
    """Write ``calls.parquet`` and so on.

    Raises:
        UsageError: pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            "Parquet files are written by pyarrow, which is not installed",
            "pip install pyarrow, or --format csv",
        )
    import pyarrow
    import pyarrow.parquet

    for name, frame in tables(run).items():
        # Without a schema the type of a list would depend on whether there is one.
        schema = pyarrow.schema(
            (column, _arrow(pyarrow, column, kind)) for column, kind in COLUMNS[name].items()
        )
        table = pyarrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
        with open_private(directory / f"{name}.parquet") as file:
            pyarrow.parquet.write_table(table, file, compression="zstd")


def write_csv(run: Run, directory: Path) -> None:
    """Write ``calls.csv`` and so on, with empty fields for missing values.

    Texts that a spreadsheet would evaluate get an apostrophe as prefix.
    """
    for name, frame in tables(run).items():
        for column in LISTS & set(frame.columns):
            frame[column] = [
                None if value is None else json.dumps(value) for value in frame[column]
            ]
        for column, kind in COLUMNS[name].items():
            if kind == "string":
                frame[column] = [_harmless(value) for value in frame[column]]
        with open_private(directory / f"{name}.csv") as file:
            frame.to_csv(file, index=False, lineterminator="\n")


def _harmless(value: Any) -> Any:
    """Return a value, with an apostrophe before a text that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _arrow(pyarrow: Any, column: str, kind: str) -> Any:
    if column in LISTS:
        return pyarrow.list_(pyarrow.int64())
    kinds = {
        "Int64": pyarrow.int64(),
        "UInt64": pyarrow.uint64(),
        "boolean": pyarrow.bool_(),
        "string": pyarrow.string(),
    }
    return kinds[kind]


def _frame(rows: Rows, columns: dict[str, str]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame()
    found: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(columns)
    for (name, kind), values in zip(columns.items(), found, strict=True):
        # Build each column from a list, so that lists of equal length do not become a matrix.
        frame[name] = pd.Series(list(values), dtype=kind)
    return frame


def _row(table: str, thing: Any, **known: Any) -> tuple[Any, ...]:
    """Return a row: for each column the value in `known`, else the attribute of that name."""
    values = (
        (known[name] if name in known else getattr(thing, name), kind)
        for name, kind in COLUMNS[table].items()
    )
    return tuple(_CHECKED[kind](value) if kind in _CHECKED else value for value, kind in values)


def _calls(run: Run) -> Rows:
    rows: Rows = []
    for rank in run.ranks:
        steps = sorted(rank.steps, key=lambda step: step.position)
        begins = [step.position for step in steps]
        for call in rank.kept_calls():
            place = bisect.bisect_right(begins, call.position)
            replay = call.replay
            rows.append(
                _row(
                    "calls",
                    call,
                    rank=rank.rank,
                    label=run.communicators[call.comm].label,
                    p2p=call.op in P2P_OPS,
                    state=call.state.word,
                    replay=replay.number if replay else None,
                    graph_call=replay.call if replay else None,
                    step=steps[place - 1].number if place else None,
                )
            )
    return rows


def _ranks(run: Run) -> Rows:
    return [_row("ranks", rank, labels=json.dumps(dict(rank.labels))) for rank in run.ranks]


def _communicators(run: Run) -> Rows:
    return [
        _row("communicators", comm, comm=key, size=len(comm.ranks))
        for key, comm in sorted(run.communicators.items())
    ]


def _members(run: Run) -> Rows:
    return [
        _row(
            "members",
            log,
            comm=key,
            label=run.communicators[key].label,
            rank=rank.rank,
            first=log.first if log.first <= log.calls else None,
            p2p=len(rank.p2p.get(key, ())),
        )
        for rank in run.ranks
        for key, log in sorted(rank.logs.items())
    ]


def _steps(run: Run) -> Rows:
    return [
        _row("steps", step, rank=rank.rank, step=step.number)
        for rank in run.ranks
        for step in rank.steps
    ]


def _small(value: int | None) -> int | None:
    """Return a value that fits into 63 bits, otherwise None: foreign traces may hold anything."""
    return value if value is None or -(1 << 63) <= value < 1 << 63 else None


def _list(values: Sequence[int] | None) -> list[int] | None:
    if values is None or any(_small(value) is None for value in values):
        return None
    return list(values)


_CHECKED: dict[str, Callable[[Any], Any]] = {"Int64": _small, "object": _list}
