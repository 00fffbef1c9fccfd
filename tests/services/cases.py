"""All cases, by name."""

from __future__ import annotations

from tests.services import chains, controls, encoders, engines, servers, solo, workers

__all__ = ["CASES"]

CASES = {
    case.name: case
    for room in (workers, engines, chains, servers, solo, encoders, controls)
    for case in room.CASES
}
