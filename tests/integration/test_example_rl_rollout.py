"""examples/rl_rollout: what the trainer's side does with a rollout's routing.

The rollout itself needs verl, which has an environment of its own.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_rollout"
TOKENS = list(range(3, 43))


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "policy", raising=False)
    return importlib.import_module("policy")


def test_a_replayed_routing_is_followed_and_trained(policy: ModuleType) -> None:
    model = policy.create()
    own = policy.chosen(model, TOKENS)
    other = (own + 1) % policy.EXPERTS
    other[:, list(policy.DENSE)] = 0
    plain = policy.log_probabilities(model, TOKENS)

    with policy.replayed(model, own) as used:
        same = policy.log_probabilities(model, TOKENS)
    with policy.replayed(model, other):
        different = policy.log_probabilities(model, TOKENS)
    different.mean().backward()

    layers = [number for number, _ in policy.routers(model)]
    assert layers == [1, 2, 3]
    assert np.array_equal(np.stack(used, axis=1), own[:, layers])
    assert not own[:, list(policy.DENSE)].any()
    assert torch.allclose(plain, same, atol=1e-5)
    assert (plain - different).abs().max() > 0.1
    assert all(gate.weight.grad.abs().sum() > 0 for _, gate in policy.routers(model))
    after = policy.log_probabilities(model, TOKENS)
    assert torch.equal(after, plain), "a replay ends with its block"


def test_a_checkpoint_is_the_policy(policy: ModuleType, tmp_path: Path) -> None:
    model = policy.create()
    policy.save(model, tmp_path)

    loaded = policy.load(tmp_path)

    assert np.array_equal(policy.chosen(loaded, TOKENS), policy.chosen(model, TOKENS))
