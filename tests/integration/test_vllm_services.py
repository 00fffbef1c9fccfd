"""Answers about real vLLM services that hang, or are healthy though they look odd.

All cases: `make services`. Here are quick ones that `test_vllm_service.py` has not, with tracing.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.services.cases import CASES
from tests.services.play import play
from tests.services.score import WORDS

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

# Ceilings only go down: whoever mends an answer lowers them to what is reached then.
WORST: Mapping[str, str] = {
    "adapter_lock": "right",
    "answers_held": "right",
    "api_frozen_busy": "right",
    "coordinator_stopped": "right",
    "dp_engine_stopped": "right",
    "dp_worker_raises": "right",
    "encoder_reply_lost": "right",
    "engine_output_held": "right",
    "engine_step_held": "right",
    "offline": "right",
    "only_worker_stopped": "right",
    "pp2_send_skipped": "right",
    "rpc_timed_out": "right",
    "solo_dp_raises": "right",
    "solo_killed": "right",
    "solo_step_held": "right",
}


@pytest.mark.parametrize("name", WORST)
def test_answers_about_a_service_are_no_worse(name: str) -> None:
    results = list(play(CASES[name], untraced=False))

    assert len(results) >= 3
    assert [
        (result.moment, result.way, result.word, result.summary)
        for result in results
        # Services of other tests may run beside this one, and `attach` alone looks at all of them.
        if result.way != "attach"
        if WORDS.index(result.word) > WORDS.index(WORST[name])
    ] == []
