"""For how long a job is sampled."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from ncclscope.attach.sampling import ProcessReader, Sample, take_samples


class Sampler:
    """Samples this process, and reports for some seconds that a longer sample decides."""

    def __init__(self, gap: float, patience: float, open_until: float) -> None:
        self.asked: list[tuple[int, float]] = []
        self._open_until = open_until
        reader = ProcessReader([os.getpid()])
        began = time.monotonic()
        self.samples, self.span = take_samples(reader, gap, patience, self._is_open)
        self.seconds = time.monotonic() - began
        reader.close()

    def _is_open(self, samples: Sequence[Sample], span: float) -> bool:
        self.asked.append((len(samples), span))
        return span < self._open_until


def test_a_gap_that_was_asked_for_is_kept() -> None:
    found = Sampler(gap=0.3, patience=0.0, open_until=9.0)

    assert 0.3 <= found.span <= found.seconds
    assert found.asked == []
    assert len(found.samples) >= 2


def test_a_decided_job_is_not_sampled_any_longer() -> None:
    found = Sampler(gap=0.1, patience=60.0, open_until=0.0)

    assert len(found.asked) == 1
    assert found.span < 60.0


def test_an_undecided_job_is_sampled_until_patience_ends() -> None:
    found = Sampler(gap=0.1, patience=3.0, open_until=99.0)

    assert found.span >= 3.0
    assert all(span < 3.0 for _, span in found.asked)
    counts = [count for count, _ in found.asked]
    assert counts == list(range(len(found.samples) - len(counts), len(found.samples)))


def test_samples_end_where_the_job_moves() -> None:
    found = Sampler(gap=0.1, patience=60.0, open_until=1.0)

    assert 1.0 <= found.span < 60.0
    assert found.asked[-1][1] == found.span
