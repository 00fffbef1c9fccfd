"""A rollout of verl's, its routing replayed by the trainer, a reset, and another rollout.

    python examples/rl_rollout/run.py

Prints what was compared; the exit status is 0 if all of it agreed. See README.md for what it needs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCLSCOPE_VLLM_ROUTED_EXPERTS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import policy
import ray
import torch

ANSWER = 24
GROUP = 3
"""Answers to each prompt, as GRPO samples them: all but the first find its prompt in the cache."""
_failed = False


def claim(text: str, holds: bool) -> None:
    """Print what was compared, and remember a failure."""
    global _failed
    _failed = _failed or not holds
    print(f"{'ok  ' if holds else 'FAIL'}  {text}", flush=True)


def note(text: str) -> None:
    """Print what was seen, which may be anything."""
    print(f"      {text}", flush=True)


def cached(outputs: list[Any]) -> int:
    """Return how many tokens of a rollout were found in the prefix cache."""
    return sum(output.extra_fields["num_cached_tokens"] or 0 for output in outputs)


def compare(model: Any, prompts: list[list[int]], outputs: list[Any], step: int) -> list[Any]:
    """Compare a rollout's routing with the policy's own; return tokens and routing of each."""
    import rollout

    found, equal, rows, types = [], 0, 0, set()
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = [*prompt, *output.token_ids]
        routing = rollout.routing(output)
        types.add(str(np.asarray(output.routed_experts).dtype))
        truth = policy.chosen(model, tokens)[:-1]
        rows += len(truth)
        if routing.shape == truth.shape:
            equal += int((routing == truth).all(axis=(1, 2)).sum())
        found.append((tokens, routing))
    shape = found[0][1].shape
    note(f"step {step}: {len(outputs)} answers, {types}, the first one {shape}")
    claim(f"step {step}: {equal} of {rows} tokens as the policy's own forward pass", equal == rows)
    return found


def replay(model: Any, found: list[Any]) -> torch.Tensor:
    """Return the loss of a forward pass in the trainer's precision, with the rollout's routing."""
    trained = model.bfloat16()  # a trainer's kernels round differently, and some tokens tip over
    own = tipped = kept = 0
    losses = []
    for tokens, routing in found:
        mine = policy.chosen(trained, tokens[:-1])
        tipped += int((mine != routing).any(axis=(1, 2)).sum())
        own += len(mine)
        with policy.replayed(trained, routing) as used:
            losses.append(-policy.log_probabilities(trained, tokens[:-1]).mean())
        layers = [number for number, _ in policy.routers(trained)]
        kept += int((np.stack(used, axis=1) == routing[:, layers]).all(axis=(1, 2)).sum())
    note(f"replay: in bfloat16 {tipped} of {own} tokens go to other experts by themselves")
    claim(f"replay: {kept} of {own} went where the rollout sent them", kept == own)
    return torch.stack(losses).mean()


def main() -> int:
    """Run both steps."""
    import rollout

    random = np.random.default_rng(0)
    prompts = [random.integers(3, policy.VOCABULARY, 40).tolist() for _ in range(3)]
    prompts = [prompt for prompt in prompts for _ in range(GROUP)]
    with tempfile.TemporaryDirectory() as name:
        checkpoint = Path(name) / "policy"
        model = policy.create()
        policy.save(model, checkpoint)
        own = {} if os.getenv("RAY_ADDRESS") else {"num_cpus": 2, "include_dashboard": False}
        ray.init(**own, log_to_driver=bool(os.getenv("VERBOSE")))
        served = rollout.Rollout(checkpoint, ANSWER)
        outputs = served.generate(prompts, temperature=1.0)
        found = cached(outputs)
        claim(f"step 1: {found} tokens were found in the prefix cache", found > 0)
        first = compare(policy.load(checkpoint), prompts, outputs, 1)

        trained = policy.load(checkpoint)
        loss = replay(trained, first)
        loss.backward()
        gates = [float(gate.weight.grad.abs().sum()) for _, gate in policy.routers(trained)]
        claim("replay: gradients reach all routers", all(grad > 0 for grad in gates))

        before = cached(served.generate(prompts, temperature=0.0))
        served.begin_step(2)
        outputs = served.generate(prompts, temperature=0.0)
        after = cached(outputs)
        text = f"step 2: {after} tokens were found in the prefix cache, {before} without its reset"
        claim(text, after < before)
        compare(policy.load(checkpoint), prompts, outputs, 2)
        claim("step 2: verl counts it", outputs[0].extra_fields["global_steps"] == 2)
    ray.shutdown()
    return int(_failed)


if __name__ == "__main__":
    sys.exit(main())
