"""What is said of real vLLM services that hang, or are healthy though they look odd.

All cases: `make services`. Here are those that differ most, traced only.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.services.__main__ import CASES
from tests.services.play import play
from tests.services.score import WORDS

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
