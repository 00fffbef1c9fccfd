"""vLLM's own ``enable_return_routed_experts`` in a real engine on the CPU: `make test-vllm`.

Its first layer is dense, so that arrays of vLLM's shape have a layer that routes nothing. Where
vLLM's own way runs on the CPU, the plugin's arrays are those of vLLM. The second model runner is
asked for drafts, too, and steps in flight.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.c10d_ranks import ROOT
from tests.integration.routing_reference import reference_routing
from tests.integration.second_runner import RUNNERS, environment_of
from tests.integration.tiny_moe import write_checkpoint
from tests.integration.vllm_flagged import LENGTHS, START
from tests.integration.vllm_server import TINY_QWEN3_MOE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

CONFIG = {**TINY_QWEN3_MOE, "mlp_only_layers": [0]}
LAYERS, TOP_K = CONFIG["num_hidden_layers"], CONFIG["num_experts_per_tok"]
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_checkpoint(directory, CONFIG)
    return directory


def run(
    model: Path, target: Path, variable: str, runner: str, *options: str
) -> subprocess.CompletedProcess[str]:
    chosen = environment_of(runner)
    if chosen is None:
        pytest.skip(f"no {runner} model runner for the CPU")
    command = [sys.executable, "-m", "tests.integration.vllm_flagged", str(model), str(target)]
    environment = {**os.environ, "NCCLSCOPE_VLLM_ROUTED_EXPERTS": variable, **chosen}
    return subprocess.run(
        [*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def answers(model: Path, runner: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target = tmp_path_factory.mktemp("answers") / "ours.npz"
    vllm = pytest.importorskip("vllm")
    options = ["async_scheduling=true"] if runner == "second" else []
    if options and not vllm.__version__.startswith(("0.30.", "0.31.", "0.32.")):
        options.append(f"speculative_config={DRAFTS}")  # earlier releases refuse both together
    done = run(model, target, "1", runner, *options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(np.load(target))


@pytest.mark.parametrize("place", range(len(LENGTHS) + 1))
@pytest.mark.parametrize(("number", "start"), [(0, 0), (1, START)])
def test_all_requests_have_the_routing_of_all_layers(
    model: Path, answers: dict[str, Any], number: int, start: int, place: int
) -> None:
    name = f"{number}-{place}"
    tokens = answers[f"{name} tokens"].tolist()
    truth = reference_routing(model, tokens)[start:-1]

    found = answers[f"{name} routing"]

    assert (found.shape, found.dtype) == ((len(truth), LAYERS, TOP_K), np.uint8)
    assert not found[:, 0].any()
    assert np.array_equal(found[:, 1:], truth)
    assert not answers[f"{name} missing"].any()


def test_prefixes_were_found_in_the_cache(answers: dict[str, Any]) -> None:
    assert sum(count for name, count in answers.items() if name.endswith("cached")) > 0


def test_vllms_own_way_returns_the_same_where_it_runs(
    model: Path, runner: str, answers: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "stock.npz"
    done = run(model, target, "", runner)
    if done.returncode != 0:  # from vLLM 0.32 on it needs the second runner, and that a GPU
        assert "AuxOutput Connector requires Model Runner V2" in done.stderr, done.stderr[-3000:]
        return

    stock = dict(np.load(target))

    assert {name for name in stock if name.endswith("routing")}
    for name in [name for name in stock if not name.endswith("cached")]:
        found = stock[name]
        assert np.array_equal(answers[name], found), name
        assert answers[name].dtype == found.dtype, name
