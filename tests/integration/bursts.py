"""Requests to a vLLM server in bursts, with pauses, and what a watch beside it says."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["PROMPTS", "STALL", "alarms", "documents", "serve_in_bursts"]

STALL = 5.0
"""Seconds after which a call counts as stuck, for the watch; one pause is longer."""
PROMPTS = ([1, 2, 3, 4, 5], [7, 300, 12], list(range(20, 90)))
LEAST = 20
PAUSES = (0.5, 2 * STALL, 1.0, 0.0, 3.0, STALL + 1, *[0.3] * 1000)


def serve_in_bursts(complete: Callable[[list[int], int], object], seconds: float) -> int:
    """Ask in bursts of up to six requests; return how many were answered.

    Args:
        complete: Called with a prompt and a number of tokens, in threads; raises where there is no
            answer.
        seconds: Time to go on for, at least.
    """
    chosen = random.Random(3)
    began = time.monotonic()
    served = 0
    for pause in PAUSES:
        burst = [
            (chosen.choice(PROMPTS), chosen.randint(1, 40)) for _ in range(chosen.randint(1, 6))
        ]
        with ThreadPoolExecutor(len(burst)) as pool:
            for answer in [pool.submit(complete, *request) for request in burst]:
                answer.result()
        served += len(burst)
        # On a busy machine the pauses alone may take most of that time.
        if served > LEAST and time.monotonic() - began > seconds:
            break
        time.sleep(pause)
    return served


def documents(watch: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """End a watch and return all that it printed."""
    watch.terminate()
    output, complained = watch.communicate(timeout=20)
    assert complained == ""
    return [json.loads(line) for line in output.splitlines()]


def alarms(found: list[dict[str, Any]]) -> list[str]:
    """Return the summaries of documents that name a hang or a divergence."""
    return [one["summary"] for one in found if one["status"] not in ("ok", "incomplete", "unknown")]
