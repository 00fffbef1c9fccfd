"""docs/routed-experts.md: its program runs, its examples are read, its figures are true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from ncclscope_patches import routed_experts
from ncclscope_patches.routed_experts import (
    ENCODINGS,
    RoutedExperts,
    RoutingRequest,
    RoutingShape,
    choice_fields,
    encode_array,
)
from tests.routed.rows import random_routing

PAGE = (Path(__file__).parents[2] / "docs" / "routed-experts.md").read_text(encoding="utf-8")


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[number]


def test_the_program_runs() -> None:
    ids = torch.tensor([[3, 4], [5, 127], [0, 9]])
    names: dict[str, Any] = {"router": lambda hidden: hidden + 0, "hidden": ids}
    exec(block("python"), names)
    for name in ("result", "routed"):
        assert names[name].ids.tolist() == [[row, row] for row in ids.tolist()]
        assert names[name].missing_count == 0


def test_the_request_opts_in() -> None:
    xargs = json.loads(block("json"))["vllm_xargs"]
    assert RoutingRequest.parse(xargs) == RoutingRequest(True, "compact")


def test_the_answer_is_such_a_one() -> None:
    shown = json.loads("{" + block("json", 1) + "}")
    ids = np.zeros((12, 24, 8), np.uint8)
    made = choice_fields(RoutedExperts(ids, np.arange(12) < 4, 9), "compact")
    assert list(made) == list(shown)
    assert made["routed_experts_info"] == shown["routed_experts_info"]
    assert made["routed_experts"].startswith(shown["routed_experts"].removesuffix("..."))


def test_the_figures_are_true() -> None:
    figures = dict(re.findall(r"^\| `(\w+)` \|.*?\| ([\d. |]+) \|$", PAGE, re.MULTILINE))
    assert list(figures) == list(ENCODINGS)
    for name, line in figures.items():
        for experts, figure in zip((128, 256, 512), line.split(" | "), strict=True):
            ids = random_routing(RoutingShape(24, 8, experts), 400)
            assert len(encode_array(ids, name)) / ids.nbytes == pytest.approx(
                float(figure), abs=0.006
            )


def test_all_modules_are_named() -> None:
    modules = {path.stem for path in Path(routed_experts.__file__).parent.glob("*.py")}
    assert modules - set(re.findall(r"`(\w+)`", PAGE)) == {"__init__", "deltas", "result", "shape"}
