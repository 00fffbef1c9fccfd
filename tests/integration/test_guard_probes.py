"""The guard behind the probe of torch.distributed: the error reaches the program, not the probe."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from ncclscope.errors import DivergenceError
from tests.integration.c10d_ranks import join, main, run_ranks


def diverge(rank: int) -> None:
    import torch

    dist = join()
    tensor = torch.zeros(4)
    for _ in range(3):
        dist.all_reduce(tensor)
    place = Path(os.environ["NCCLSCOPE_DIR"])
    if rank == 0:
        dist.all_reduce(tensor, async_op=True)
        (place / "posted").touch()
        wait_for(place / "message.json")
    else:
        wait_for(place / "posted")
        message = error_of(lambda: dist.broadcast(tensor, 0))
        (place / "message.draft").write_text(json.dumps(message))
        (place / "message.draft").rename(place / "message.json")
    os._exit(0)  # what has been posted never completes


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def error_of(post: Callable[[], object]) -> str:
    try:
        post()
    except DivergenceError as error:
        return str(error)
    return ""


def test_a_call_that_no_peer_will_join_is_an_error_in_its_place(rings: Path) -> None:
    run = run_ranks(__file__, "diverge", rings, environment={"NCCLSCOPE_GUARD": "raise"})

    message = json.loads((rings / "message.json").read_text())
    assert "the sequences on world diverge at call " in message
    assert "rank 1 posted broadcast [4] float32 root 0 at test_guard_probes.py:" in message
    assert "rank 0 posted all_reduce sum [4] float32 at test_guard_probes.py:" in message
    assert run.ranks[1].details["guard"]["mode"] == "raise"
    assert "probe_failed" not in run.ranks[1].details


if __name__ == "__main__":
    main(globals())
