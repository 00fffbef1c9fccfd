"""What several tests on GPUs need."""

from __future__ import annotations

import os

import pytest

SET = 4
"""GPUs of a worker, where tests run side by side and there are enough: hangs keep them busy."""


def pytest_configure() -> None:
    """Give each worker of pytest-xdist GPUs of its own, of those that are named as visible."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if sets := len(gpus) // SET if worker else 0:
        first = int(worker.removeprefix("gw")) % sets * SET
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + SET])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of speed, of NVLink and of kernels between GPUs where ranks share one."""
    marker = item.get_closest_marker("real_gpus")
    if marker is None:
        return
    from tests.gpu.host import REAL

    (wanted,) = marker.args
    if wanted > REAL:
        pytest.skip(f"needs {wanted} GPUs that ranks do not share")


@pytest.fixture
def two_gpus() -> None:
    """Skip where NCCL cannot have two ranks."""
    pytest.importorskip("torch")
    from tests.gpu.host import SEATS

    if SEATS < 2:
        pytest.skip("needs two GPUs, or one that ranks may share")
