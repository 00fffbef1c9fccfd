"""What is said of real vLLM services that hang, or are healthy though they look odd.

All cases: `make services`. Here are those that differ most, traced only.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]
