"""Who holds NCCL's profiler slot, and what becomes of the plugin that was there before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ncclscope import native
from ncclscope.__main__ import main
from ncclscope.doctor.installed import check_installation
from ncclscope.native import profiler

PATH = "/site/ncclscope/native/ncclscope-profiler.so"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "plugin_path", lambda: Path(PATH))
    monkeypatch.setattr(native, "why_not", lambda: "")
    monkeypatch.setattr(native, "core", lambda: native)


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "plugin_path", lambda: None)
    monkeypatch.setattr(native, "core", lambda: None)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("configured", "behind"),
    [("", ""), ("inspector", "inspector"), ("/opt/x.so", "/opt/x.so"), (PATH, ""), ("none", None)],
)
def test_the_plugin_configured_before_moves_behind_ours(
    configured: str, behind: str | None
) -> None:
    environment = {"NCCL_PROFILER_PLUGIN": configured} if configured else {}
    profiler.arrange(environment)
    if behind is None:
        assert environment == {"NCCL_PROFILER_PLUGIN": "none"}
    else:
        assert environment["NCCL_PROFILER_PLUGIN"] == PATH
        assert profiler.next_plugin(environment) == behind
        once = dict(environment)
        profiler.arrange(environment)
        assert environment == once


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"NCCL_PROFILER_PLUGIN": "other"}, {"NCCL_PROFILER_PLUGIN": "other"}),
        ({"NCCL_PROFILER_PLUGIN": PATH}, {}),
        (
            {"NCCL_PROFILER_PLUGIN": PATH, "NCCLSCOPE_NEXT_PROFILER": "other"},
            {"NCCL_PROFILER_PLUGIN": "other", "NCCLSCOPE_NEXT_PROFILER": "other"},
        ),
    ],
)
def test_a_python_without_the_core_does_not_let_the_plugin_record_too(
    before: dict[str, str], after: dict[str, str]
) -> None:
    profiler.arrange(before)
    assert before == after


@pytest.mark.usefixtures("built")
def test_plugin_path_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin-path"]) == 0
    assert capsys.readouterr().out == f"{PATH}\n"


@pytest.mark.usefixtures("unbuilt")
def test_plugin_path_without_a_plugin_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin-path"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "install a C compiler" in captured.err


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("variables", "state", "message"),
    [
        ({}, "ok", "is not set; `ncclscope run` sets it"),
        ({"NCCL_PROFILER_PLUGIN": "inspector"}, "warn", "inspector holds NCCL's slot"),
        ({"NCCL_PROFILER_PLUGIN": PATH}, "bad", "does not exist"),
        ({"NCCL_PROFILER_PLUGIN": "ncclscope"}, "ok", "ours holds NCCL's slot"),
        (
            {"NCCL_PROFILER_PLUGIN": "ncclscope", "NCCLSCOPE_NEXT_PROFILER": "inspector"},
            "ok",
            "events are passed on to inspector",
        ),
    ],
)
def test_doctor_says_who_holds_the_slot(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], state: str, message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (check,) = [one for one in check_installation("x") if one.name == "NCCL plugin"]
    assert check.status == state
    assert message in check.state


@pytest.mark.usefixtures("unbuilt")
def test_doctor_says_that_the_plugin_was_not_built() -> None:
    (check,) = [one for one in check_installation("x") if one.name == "NCCL plugin"]
    assert check.status == "off"


def test_a_traced_process_maps_no_second_nccl() -> None:
    # DeepEP refuses to start where two mapped files have "libnccl" in their names.
    program = (
        "import ncclscope.native as native; print(native.core() is None);"
        "print(open('/proc/self/maps').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    without_core, _, maps = done.stdout.partition("\n")

    assert without_core == "True" or "ncclscope-profiler.so" in maps
    assert "libnccl" not in maps
    path = native.plugin_path()
    assert path is None or "libnccl" not in str(path)
