"""Answers about real vLLM services that hang, or are healthy though they look odd.

All cases: `make services`. Here are those that `test_vllm_service.py` has not, with tracing.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.services.cases import CASES
from tests.services.play import play
from tests.services.score import WORDS

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

ALL_PIDS = "attach PIDs"
# Ceilings only go down: whoever mends an answer lowers them to what is reached then. The second is
# for `attach` with all process ids, that of the API server among them.
WORST: Mapping[str, tuple[str, str]] = {
    "answers_held": ("unknown", "unknown"),
    "api_frozen_busy": ("unknown", "unknown"),
    "api_stopped_busy": ("unknown", "unknown"),
    "coordinator_stopped": ("fair", "unknown"),
    "dp_engine_held": ("right", "right"),
    "dp_engine_leaves": ("right", "unknown"),
    "engine_input_held": ("unknown", "unknown"),
    "engine_output_held": ("unknown", "unknown"),
    "grammar_never": ("right", "right"),
    "offline": ("right", "right"),
    "only_worker_stopped": ("right", "right"),
    "sleep_then_request": ("right", "unknown"),
    "slow_client": ("right", "unknown"),
    "spec_decode_skip": ("right", "unknown"),
    "weights_one_rank": ("right", "unknown"),
}


@pytest.mark.parametrize("name", WORST)
def test_answers_about_a_service_are_no_worse(name: str) -> None:
    usual, with_all_pids = WORST[name]
    results = list(play(CASES[name], untraced=False))

    assert len(results) >= 3
    assert [
        (result.moment, result.way, result.word, result.summary)
        for result in results
        # Workers of another test may run beside these; then `attach` asks for a choice.
        if not result.status.startswith("exit")
        if WORDS.index(result.word)
        > WORDS.index(with_all_pids if result.way == ALL_PIDS else usual)
    ] == []
