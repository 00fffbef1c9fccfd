"""Which frame of a Flight Recorder stack is the program's, however its paths are spelled."""

from __future__ import annotations

from typing import Any

import pytest

from ncclscope.model.sites import Sites, frame_of, read, role, short
from ncclscope.readers.flight_recorder.log import find_sites


def stack(*paths: str) -> list[dict[str, Any]]:
    """Return frames, the innermost first, at lines 1, 2, ..."""
    return [
        {"filename": path, "line": line, "name": f"f{line}"} for line, path in enumerate(paths, 1)
    ]


TORCH = [
    "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py",
    "/opt/pytorch/torch/distributed/distributed_c10d.py",
    "torch/distributed/distributed_c10d.py",
    "./torch/distributed/distributed_c10d.py",
    "torch/optim/optimizer.py",
    "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
]


@pytest.mark.parametrize("path", TORCH)
@pytest.mark.parametrize(
    "own", ["/job/train.py", "train.py", "./src/train.py", "/job/torch/train.py"]
)
def test_frames_of_torch_are_passed_over(path: str, own: str) -> None:
    found = find_sites(stack(path, path, own, "/usr/lib/python3.12/runpy.py"))
    assert found == Sites("train.py:3 f3", f"{own}:3 f3", None)


def test_our_own_frames_are_passed_over() -> None:
    found = find_sites(
        stack("/v/site-packages/ncclscope_patches/noting.py", TORCH[0], "/job/train.py")
    )
    assert found.site == "train.py:3 f3"


def test_the_users_line_is_found_above_an_installed_package() -> None:
    package = "/venv/lib/python3.12/site-packages/accelerate/accelerator.py"
    found = find_sites(stack(TORCH[0], package, package, "/job/train.py", "/job/main.py"))
    assert found == Sites("accelerator.py:2 f2", f"{package}:2 f2", "/job/train.py:4 f4")


def test_without_a_frame_of_the_program_the_innermost_is_named() -> None:
    assert find_sites(stack(*TORCH[:2])).site == "distributed_c10d.py:1 f1"
    assert find_sites([]) == find_sites(None) == find_sites([1, "x"]) == Sites()


def test_tests_of_torch_are_programs() -> None:
    path = "/v/site-packages/torch/testing/_internal/distributed/distributed_test.py"
    assert find_sites(stack(TORCH[0], path)).site == "distributed_test.py:2 f2"
    assert role(path) != role(TORCH[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a b/c.py:12 f", "c.py:12 f"),
        ("c.py:12 f", "c.py:12 f"),
        ("/a/c.py:12", "c.py:12"),
        ("<stdin>:1 <module>", "<stdin>:1 <module>"),
        ("no place at all", "no place at all"),
        ("", ""),
    ],
)
def test_short_spelling(text: str, expected: str) -> None:
    assert short(text) == expected


def test_a_place_in_parts() -> None:
    assert frame_of("/a/c.py:12 f") == {"file": "/a/c.py", "line": 12, "function": "f"}
    assert frame_of("no place") is None
    assert frame_of(None) is None
    assert read(None) == read("") == read(" \n ") == Sites()
    assert read("/a/c.py:1 f  \n  ") == Sites("c.py:1 f", "/a/c.py:1 f", None)
