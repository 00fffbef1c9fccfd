"""How many bytes routing adds to a step's output, measured on the wire, and to an answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cluster import Cluster, workplace
from load import Ask, Judged, Load, Reply, ask, judge
from plan import Plan

__all__ = ["Volume", "measure"]

PREFILL = 2708
"""Tokens of the prompt of which the proposal gives the volume."""
_DECODES = 8


@dataclass(frozen=True)
class Volume:
    """Bytes, for numbers of experts of one type.

    Attributes:
        dtype: The type.
        nobody: Routing in outputs of steps that nobody opted in for.
        decode: In the output of a step with one token of one request that opted in.
        prefill: In that of a step with a prompt of 2708 tokens.
        around: What else an output has more than one without, at most: the request's name, the
            array's type and shape.
        plain: Size of the largest output without any.
        answer: Size of an answer without routing.
        npy: Size of the text that holds the routing in an answer, as ``npy``.
        compact: Likewise, as ``compact``.
        judged: The answers.
    """

    dtype: str
    nobody: int
    decode: int
    prefill: int
    around: int
    plain: int
    answer: int
    npy: int
    compact: int
    judged: Judged

    @property
    def good(self) -> bool:
        """Whether all answers were right."""
        judged = self.judged
        return judged.answered == 3 and not (
            judged.wrong_tokens or judged.refused or judged.missing or judged.wrong
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "good": self.good}


def measure(plan: Plan) -> list[Volume]:
    """Measure with numbers of one byte, which 128 experts take, and of four.

    Args:
        plan: Sizes of the model.
    """
    volumes = []
    for wide in (False, True):
        print(f"volume, {'four bytes' if wide else 'one byte'} ...", file=sys.stderr, flush=True)
        with workplace() as place:
            volumes.append(
                _measure(
                    replace(
                        plan,
                        workplace=str(place),
                        way="new",
                        wide=wide,
                        budget=max(plan.budget, PREFILL),
                        blocks=max(plan.blocks, 4 * PREFILL // plan.block_size),
                    )
                )
            )
    return volumes


def _measure(plan: Plan) -> Volume:
    load = Load(
        requests=3,
        samples=1,
        prompt_tokens=PREFILL,
        max_tokens=_DECODES + 1,
        burst_tokens=0,
        fixed=True,
        share=0,
    )
    (prompts,) = load.phases()
    asks = [
        prompts[0],
        replace(prompts[1], wanted=True),
        replace(prompts[2], wanted=True, encoding="compact"),
    ]
    with Cluster(plan) as cluster:
        # One after the other, so that each step is of one request.
        replies = [ask(cluster.port, asked) for asked in asks]
        cluster.end()
    steps = [
        step
        for replica in range(plan.dp)
        for step in json.loads(plan.wire_log(replica).read_text())
    ]
    return _summarise(plan, replies, asks, steps)


def _summarise(
    plan: Plan, replies: Sequence[Reply], asks: Sequence[Ask], steps: Sequence[dict[str, int]]
) -> Volume:
    plain = [step for step in steps if not step["wanted"]]
    decodes = [step for step in steps if step["wanted"] == 1]
    prefills = [step for step in steps if step["wanted"] == PREFILL]
    if len(decodes) != 2 * _DECODES or len(prefills) != 2:
        raise RuntimeError(f"{len(decodes)} and {len(prefills)} steps of requests that opted in")
    least = min(step["frame"] for step in plain if step["rows"])
    texts = [_routing_text(reply) for reply in replies]
    return Volume(
        dtype=plan.shape.dtype.name,
        nobody=max(step["routed"] for step in plain),
        decode=_only(decodes),
        prefill=_only(prefills),
        around=max(step["frame"] - step["routed"] - least for step in [*decodes, *prefills]),
        plain=max(step["frame"] for step in plain),
        answer=len(replies[0].body),
        npy=len(texts[1]),
        compact=len(texts[2]),
        judged=judge(plan, replies, len(asks)),
    )


def _only(steps: Sequence[dict[str, int]]) -> int:
    """Return the bytes of routing, which are the same in all steps."""
    (size,) = {step["routed"] for step in steps}
    return size


def _routing_text(reply: Reply) -> str:
    (choice,) = json.loads(reply.body)["choices"]
    text: str = choice.get("routed_experts", "")
    return text
