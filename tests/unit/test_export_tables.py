"""Tables: every column is documented, typed, and holds what was recorded."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ncclscope.__main__ import main
from ncclscope.export.prometheus import write_prometheus
from ncclscope.export.tables import COLUMNS, LISTS, tables, write_csv, write_parquet
from ncclscope.model import Run
from ncclscope.readers import open_run
from tests.support.cluster import Cluster
from tests.support.export_runs import prepare
from tests.support.programs import ROOT


@pytest.fixture
def run(tmp_path: Path) -> Run:
    cluster = prepare(tmp_path / "rings", "sizes")
    cluster.tracers[2].step(5, tokens=11)
    cluster.post([2], "tp:0", "send", peer=1, done=False)
    return cluster.run()


def test_every_column_is_documented() -> None:
    text = (ROOT / "docs" / "export.md").read_text()
    for name, columns in COLUMNS.items():
        part = re.search(rf"^### {name}$(.*?)(?=^##)", text, re.M | re.S)
        assert part is not None
        assert re.findall(r"^\| `(\w+)` \|", part[1], re.M) == list(columns)


def test_calls_hold_what_was_recorded(run: Run) -> None:
    calls = tables(run)["calls"]

    assert len(calls) == sum(len(rank.kept_calls()) for rank in run.ranks) == 25
    assert {name: str(kind) for name, kind in calls.dtypes.items()} == COLUMNS["calls"]
    odd = calls[(calls["rank"] == 1) & (calls["seq"] == 6)].iloc[0]
    assert (odd["op"], odd["shape"], odd["sizes"]) == ("all_gatherv", [5, 2], [4, 4, 6, 7])
    assert (odd["state"], odd["p2p"], odd["site"]) == (
        "scheduled",
        False,
        "model.py:10 all_gatherv",
    )
    assert pd.isna(odd["redop"])
    sent = calls[calls["p2p"]].iloc[0]
    assert (sent["rank"], sent["op"], sent["peer"], sent["step"]) == (2, "send", 1, 5)
    assert calls["step"].notna().sum() == 1
    by_number = calls[~calls["p2p"]].groupby("seq")["signature"].nunique()
    assert list(by_number[by_number > 1].index) == [6]


def test_parquet_is_read_with_the_same_types(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(run, tmp_path)

    for name, columns in COLUMNS.items():
        table = parquet.read_table(tmp_path / f"{name}.parquet")
        assert table.schema.names == list(columns)
        for column in LISTS & set(columns):
            assert str(table.schema.field(column).type) == "list<element: int64>"
        back = table.to_pylist()
        made = [
            {key: None if _missing(value) else value for key, value in row.items()}
            for row in tables(run)[name].to_dict("records")
        ]
        assert back == made


def _missing(value: object) -> bool:
    return value is None or (not isinstance(value, list) and bool(pd.isna(value)))


def test_csv_is_read_with_the_same_values(run: Run, tmp_path: Path) -> None:
    write_csv(run, tmp_path)

    for name, frame in tables(run).items():
        lists = LISTS & set(frame.columns)
        kinds = {key: kind for key, kind in COLUMNS[name].items() if key not in lists}
        back = pd.read_csv(
            tmp_path / f"{name}.csv", dtype=kinds, keep_default_na=False, na_values=[""]
        )
        for column in frame.columns:
            if column in lists:
                found = [json.loads(v) if isinstance(v, str) else None for v in back[column]]
                assert found == list(frame[column])
            else:
                pd.testing.assert_series_equal(back[column], frame[column], check_dtype=False)


def test_tables_of_nothing_have_their_columns(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    header = {"ncclscope_trace": 1, "rank": 0, "world_size": 1}
    (tmp_path / "0.jsonl").write_text(json.dumps(header) + "\n")
    run = open_run(tmp_path)
    (tmp_path / "out").mkdir()

    write_parquet(run, tmp_path / "out")

    assert list(pd.read_parquet(tmp_path / "out/calls.parquet").columns) == list(COLUMNS["calls"])


def test_numbers_that_fit_nowhere_are_missing(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    lines = [
        {"ncclscope_trace": 1, "rank": 0, "world_size": 1},
        {"call": "all_reduce", "comm": "k", "shape": [1 << 63], "t_ns": (1 << 64) - 1},
    ]
    (tmp_path / "0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "out").mkdir()

    write_parquet(open_run(tmp_path), tmp_path / "out")

    (row,) = pd.read_parquet(tmp_path / "out/calls.parquet").to_dict("records")
    assert row["shape"] is None
    assert pd.isna(row["time_ns"])


def test_without_pyarrow_one_line_says_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    target = str(tmp_path / "out")

    status = main(["export", str(tmp_path / "rings"), "--format", "parquet", "-o", target])

    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert "pip install pyarrow" in line
    assert main(["export", str(tmp_path / "rings"), "--format", "csv", "-o", target]) == 0


@pytest.mark.parametrize("begin", ["=", "+", "-", "@"])
def test_text_in_csv_is_no_formula(tmp_path: Path, begin: str) -> None:
    label = f'{begin}HYPERLINK("http://x",1)'
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.history(label)
    run = cluster.run()
    (tmp_path / "csv").mkdir()
    (tmp_path / "parquet").mkdir()

    write_csv(run, tmp_path / "csv")
    write_parquet(run, tmp_path / "parquet")

    for name in ("calls", "communicators", "members"):
        with open(tmp_path / "csv" / f"{name}.csv", encoding="utf-8", newline="") as file:
            assert f"'{label}" in {row["label"] for row in csv.DictReader(file)}
        # Types distinguish texts and numbers there, and nothing is carried out.
        assert label in set(pd.read_parquet(tmp_path / "parquet" / f"{name}.parquet")["label"])


def test_a_carriage_return_in_csv_begins_no_row(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    cluster.history("tp\r=1+1")

    write_csv(cluster.run(), tmp_path)

    for name in ("calls", "communicators", "members"):
        assert b"\r" not in (tmp_path / f"{name}.csv").read_bytes()


def test_negative_numbers_in_csv_stay_numbers(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.history()
    run = cluster.run()
    run = replace(run, ranks=[replace(rank, rank=-7 - rank.rank) for rank in run.ranks])

    write_csv(run, tmp_path)

    frame = pd.read_csv(tmp_path / "ranks.csv")
    assert frame["rank"].tolist() == [-7, -8]


# --- Prometheus ----------------------------------------------------------------------------------

SAMPLE = re.compile(r'([a-z0-9_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def test_prometheus_has_the_verdict_and_the_counts(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history('tp:0"\n')
    cluster.post([0, 1, 2], 'tp:0"\n', done=False)
    write_prometheus(cluster.run(), tmp_path / "job.prom")

    samples = {}
    for line in (tmp_path / "job.prom").read_text().splitlines():
        if not line.startswith("#"):
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', found[2] or ""))
            samples[found[1], labels.get("rank") or labels.get("status", "")] = float(found[3])
    assert samples["ncclscope_status", "hung"] == 1
    assert samples["ncclscope_calls_total", "3"] == 5
    assert samples["ncclscope_lag_calls", "3"] == 1
    assert samples["ncclscope_in_call", "0"] == 1
    assert samples["ncclscope_in_call", "3"] == 0
    assert samples["ncclscope_idle_seconds", "0"] == 60


def test_prometheus_is_about_the_whole_run(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rings = str(tmp_path / "rings")

    assert main(["export", rings, "--format", "prometheus", "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("# HELP ncclscope_status")
    assert main(["export", rings, "--format", "prometheus", "--ranks", "0", "-o", "-"]) == 2
    assert "whole run" in capsys.readouterr().err
