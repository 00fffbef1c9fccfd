"""What several tests on GPUs need."""

from __future__ import annotations

import os

import pytest

SET = 4
"""GPUs of a worker, where tests run side by side and there are enough: hangs keep them busy."""


def pytest_configure() -> None:
    """Gives each worker of pytest-xdist GPUs of its own, of those that are named as visible."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if sets := len(gpus) // SET if worker else 0:
        first = int(worker.removeprefix("gw")) % sets * SET
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + SET])


@pytest.fixture
def two_gpus() -> None:
    """Skips where there are fewer."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
