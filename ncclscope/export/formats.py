"""Export formats by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ncclscope.model import Run

Writer = Callable[[Run, Path], None]


@dataclass(frozen=True)
class Format:
    """An export format.

    Attributes:
        home: Writer, as ``module:function``.
        is_directory: Whether it writes a directory, with a file for each rank or table.
        suffix: Suffix of the file; empty for a directory.
        help: Description in a few words.
        is_whole: Whether it describes a whole run, so that no selection is possible.
    """

    home: str
    is_directory: bool
    suffix: str
    help: str
    is_whole: bool = False

    def writer(self) -> Writer:
        """Return the function that writes a run to a path."""
        module, _, name = self.home.partition(":")
        found: Writer = getattr(importlib.import_module(module), name)
        return found


FORMATS = {
    "jsonl": Format(
        "ncclscope.export.jsonl:write_jsonl", True, "", "trace JSONL, read by every command"
    ),
    "perfetto": Format(
        "ncclscope.export.perfetto:write_perfetto",
        False,
        ".pftrace",
        "timeline with a track per rank and communicator, for ui.perfetto.dev; .gz compresses",
    ),
    "chrome": Format(
        "ncclscope.export.chrome:write_chrome",
        False,
        ".json",
        "the timeline as Chrome's JSON, for other viewers and scripts; .gz compresses",
    ),
    "parquet": Format(
        "ncclscope.export.tables:write_parquet", True, "", "tables, for pandas, DuckDB, Spark"
    ),
    "csv": Format("ncclscope.export.tables:write_csv", True, "", "the tables as text"),
    "prometheus": Format(
        "ncclscope.export.prometheus:write_prometheus",
        False,
        ".prom",
        "verdict and counts, under the names of `ncclscope watch --textfile`",
        is_whole=True,
    ),
    "flight-recorder": Format(
        "ncclscope.export.flight_recorder:write_pickles",
        True,
        "",
        "dumps in torch's format, for torchfrtrace",
    ),
    "flight-recorder-json": Format(
        "ncclscope.export.flight_recorder:write_json", True, "", "the dumps as JSON"
    ),
}
