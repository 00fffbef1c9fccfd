"""What a ring says of ``init_process_group``, from whose beginning on it exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope import open_run
from ncclscope.tracing import session
from ncclscope_patches.startup.groups import InitNote

dist = pytest.importorskip("torch.distributed")
fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")


@pytest.mark.parametrize(("rank", "size", "found"), [(1, 3, 3), (1, 4, 4), (0, 3, 4)])
def test_the_world_size_given_counts_and_not_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, size: int, found: int
) -> None:
    """Unless it is that of another world, in which the process has another rank."""
    monkeypatch.setenv("NCCLSCOPE_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    session._reset()
    note = InitNote()
    note.apply()
    try:
        dist.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=size)
        (recorded,) = open_run(tmp_path).ranks
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        note.revert()
        session._reset()

    assert (recorded.rank, recorded.world_size) == (1, found)
