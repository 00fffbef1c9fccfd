"""A rollout of verl's, its routing replayed by the trainer, new weights, and another rollout.

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
    claim(f"step {step}: none of {len(outputs)} answers is without routing, {types} {shape}", True)
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
    claim(f"replay: in bfloat16 {tipped} of {own} tokens go to other experts by themselves", True)
    claim(f"replay: {kept} of {own} went where the rollout sent them", kept == own)
    return torch.stack(losses).mean()


def main() -> int:
    """Run both steps."""
    import rollout

    random = np.random.default_rng(0)
    prompts = [random.integers(3, policy.VOCABULARY, 40).tolist() for _ in range(3)]
    prompts = [prompt for prompt in prompts for _ in range(GROUP)]
    with tempfile.TemporaryDirectory() as name:
        checkpoint, newer = Path(name) / "policy", Path(name) / "newer"
        model = policy.create()
        policy.save(model, checkpoint)
        own = {} if os.getenv("RAY_ADDRESS") else {"num_cpus": 2, "include_dashboard": False}
        ray.init(**own, log_to_driver=bool(os.getenv("VERBOSE")))
        served = rollout.Rollout(checkpoint, ANSWER)
        outputs = served.generate(prompts, temperature=1.0)
        cached = sum(output.extra_fields["num_cached_tokens"] or 0 for output in outputs)
        claim(f"step 1: {cached} tokens were found in the prefix cache", cached > 0)
        first = compare(policy.load(checkpoint), prompts, outputs, 1)

        trained = policy.load(checkpoint)
        loss = replay(trained, first)
        loss.backward()
        gates = [float(gate.weight.grad.abs().sum()) for _, gate in policy.routers(trained)]
        claim("replay: gradients reach all routers", all(grad > 0 for grad in gates))
        torch.optim.SGD(trained.parameters(), lr=2.0).step()
        policy.save(trained.float(), newer)

        before = served.generate(prompts, temperature=0.0)
        served.update(newer, step=2)
        after = served.generate(prompts, temperature=0.0)
        second = compare(policy.load(newer), prompts, after, 2)
        old = compare(policy.load(checkpoint), prompts, before, 1)
        moved = sum(
            int((a[: len(p)] != b[: len(p)]).any(axis=(1, 2)).sum())
            for p, (_, a), (_, b) in zip(prompts, old, second, strict=True)
        )
        text = (
            f"step 2: {moved} of {sum(map(len, prompts))} prompt tokens go elsewhere since step 1"
        )
        claim(f"{text}, so that routing of old weights would show", moved > 0)
        claim(f"step 2: verl counts step {after[0].extra_fields['global_steps']}", True)
    ray.shutdown()
    return int(_failed)


if __name__ == "__main__":
    sys.exit(main())
