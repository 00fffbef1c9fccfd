"""Ray clusters on one machine: a raylet for each node, with a directory of rings of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

OBJECT_STORE = 80 << 20


@contextlib.contextmanager
def cluster(directories: Mapping[str, Path]) -> Iterator[Any]:
    """Run a cluster whose nodes have these names, and these directories in NCCLSCOPE_DIR."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    found = Cluster()
    try:
        for name, directory in directories.items():
            found.add_node(
                num_cpus=1,
                object_store_memory=OBJECT_STORE,
                include_dashboard=False,
                node_name=name,
                env_vars={"NCCLSCOPE_DIR": str(directory)},
                wait=False,
            )
        # Ray's own limit for each node is 30 s, which a busy machine exceeds.
        found.wait_for_nodes(timeout=180)
        yield found
    finally:
        found.shutdown()
