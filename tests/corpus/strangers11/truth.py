"""What is wrong in each program of this folder: two sets, each written before a tool was run."""

from __future__ import annotations

from tests.corpus.strangers11 import truth_a, truth_b

__all__ = ["PROGRAMS", "STORIES"]

PROGRAMS = {**truth_a.PROGRAMS, **truth_b.PROGRAMS}
STORIES = {**truth_a.STORIES, **truth_b.STORIES}
