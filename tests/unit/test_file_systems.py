"""What kind of file system a path is on, and how many rings find room there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.doctor import file_systems
from ncclscope.doctor.file_systems import file_system, rings_that_fit
from ncclscope.doctor.installed import support
from ncclscope.ring import layout
from ncclscope.ring.room import first_parts

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /shm rw,nosuid shared:2 - tmpfs tmpfs rw
24 22 0:50 / /shared/my\\040jobs rw - nfs4 server:/jobs rw
25 22 0:51 / /over rw - ext4 /dev/vdb rw
26 22 0:52 / /over rw - overlay overlay rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/somebody", "ext4"),
        ("/shm/rings", "tmpfs"),
        ("/shm", "tmpfs"),
        ("/shmoo", "ext4"),
        ("/shared/my jobs/rings", "nfs4"),
        ("/shared/other", "ext4"),
        ("/over/there", "overlay"),
    ],
)
def test_the_longest_mount_point_decides_and_the_last_of_two(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


def test_nothing_is_claimed_where_nothing_is_known() -> None:
    assert file_system(Path("/home"), "") == "unknown"


def test_rings_are_counted_as_they_are_made() -> None:
    geometry = layout.Geometry.for_capacity(layout.DEFAULT_CAPACITY)
    size = sum(length for _, length in first_parts(geometry))
    for free, made in ((0, 0), (size, 0), (2 * size, 1), (16 * size + 1, 8)):
        assert rings_that_fit(free) == made


def test_a_container_without_shared_memory_gets_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "SHARED_MEMORY", tmp_path / "shm")

    first, *_ = file_systems.check_places("rings", str(tmp_path))

    assert (first.name, first.status, first.enable) == ("shm", "bad", "set NCCLSCOPE_DIR")


def test_what_all_probes_have_in_common_counts() -> None:
    ranges: dict[str, tuple[str, str]] = {}
    for words in ("torch 2.4 to 2.13", "torch 2.6 to 2.14", "vllm 0.26 to 0.32, CPU", "any"):
        support(words, ranges)

    assert ranges == {"torch": ("2.6", "2.13"), "vllm": ("0.26", "0.32")}
