"""Members of groups that no dump describes, as torch 2.13 leaves out those on gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclscope.readers.flight_recorder.members import Known, are_partial, infer
from tests.support.dumps import Job

Groups = list[tuple[int, ...]]


def known(*groups: tuple[int, ...], size: int = 0) -> list[Known]:
    return [Known(frozenset(group), size) for group in groups]


@pytest.mark.parametrize(
    ("held", "size", "absent", "expected", "partial"),
    [
        # Sister groups divide the job evenly: one member of a pair has not come, or left no dump.
        ([(0, 1), (2,), (4, 5), (6, 7)], 2, (), [(0, 1), (2, 3), (4, 5), (6, 7)], False),
        ([(0, 1), (2,), (4, 5), (6, 7)], 0, (3,), [(0, 1), (2, 3), (4, 5), (6, 7)], False),
        ([(0, 2, 6), (1, 3, 5, 7)], 4, (), [(0, 2, 4, 6), (1, 3, 5, 7)], False),
        # More than one division fits, or none.
        ([(0,), (7,)], 2, (), [(0,), (7,)], True),
        ([(0, 1, 5), (2, 3, 4, 6)], 4, (), [(0, 1, 5), (2, 3, 4, 6)], [True, False]),
        # A single group may be any part of the job; the rank without a dump fits.
        ([(0, 1, 3)], 4, (), [(0, 1, 3)], True),
        ([(0, 1, 3)], 4, (6,), [(0, 1, 3, 6)], False),
        ([(0, 1, 3)], 0, (), [(0, 1, 3)], True),
    ],
)
def test_members_are_inferred_from_sisters_and_sizes(
    held: Groups, size: int, absent: tuple[int, ...], expected: Groups, partial: bool | list[bool]
) -> None:
    sisters = known(*held, size=size)

    found = infer(sisters, 8, absent)

    assert found == expected
    flags = [partial] * len(held) if isinstance(partial, bool) else partial
    assert are_partial(sisters, found, 8) == flags


def test_a_member_that_has_not_come_is_no_mismatch_of_sizes(tmp_path: Path) -> None:
    """Each pair gathers; rank 3 has not come, so that rank 2 seems to be alone in its group."""
    job = Job(8, {str(n + 1): ("tp", [2 * n, 2 * n + 1]) for n in range(4)}, backend="gloo")
    for group in range(4):
        ranks = [2] if group == 1 else [2 * group, 2 * group + 1]
        done = group != 1
        job.post(
            ranks,
            "all_gather",
            group=str(group + 1),
            outs=[[8, 2]],
            state="scheduled",
            retired=done,
        )
    for rank in range(8):
        if rank not in (2, 3):
            job.post([rank], state="scheduled", retired=False)
    job.groups = {"0": ("default_pg", list(range(8)))} | {
        name: (desc, []) for name, (desc, _) in job.groups.items() if name != "0"
    }

    verdict = job.verdict(tmp_path)

    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.diverging_ranks) == ("not_joined", (3,))
