"""What several tests on GPUs need."""

from __future__ import annotations

import pytest


@pytest.fixture
def two_gpus() -> None:
    """Skips where there are fewer."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
