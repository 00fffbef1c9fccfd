"""All cases, by name."""

from __future__ import annotations

from tests.services import controls, encoders, engines, servers, solo, workers

__all__ = ["CASES"]

CASES = {
    case.name: case
    for room in (workers, engines, servers, solo, encoders, controls)
    for case in room.CASES
}
