"""A cluster for each test, and what is asked of each verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster import Cluster


@pytest.fixture
def cluster_of(tmp_path: Path) -> Callable[[int], Cluster]:
    def make(size: int) -> Cluster:
        return Cluster(tmp_path / "rings", size)

    return make
