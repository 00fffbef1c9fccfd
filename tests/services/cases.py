"""All cases, by name."""

from __future__ import annotations

from tests.services import controls, engines, servers, workers

__all__ = ["CASES"]

CASES = {case.name: case for room in (workers, engines, servers, controls) for case in room.CASES}
