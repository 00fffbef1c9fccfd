"""Depots as actors, one on each node of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ncclscope.collect.ray_nodes import Member, hire, reason_of
from ncclscope.errors import InputError
from ncclscope.remote.depot import Depot

__all__ = ["RayAsker"]


class Keeper:
    """On a node: a depot that is made when its summary is asked for."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._depot: Depot | None = None

    def summary(self) -> bytes:
        """Returns the summary."""
        self._depot = Depot(self._paths)
        return self._depot.summary()

    def answer(self, request: bytes) -> bytes:
        """Returns the answers to a request."""
        assert self._depot is not None
        return self._depot.answer(request)


class RayAsker:
    """Reaches the nodes of a cluster.

    Args:
        ray: From :func:`ncclscope.collect.ray_nodes.connect`.
        members: The nodes.
        paths: Where their rings are; what NCCLSCOPE_DIR names there when empty.
        timeout: Seconds that a node may take for an answer.
    """

    def __init__(
        self, ray: Any, members: Sequence[Member], paths: Sequence[str], timeout: float
    ) -> None:
        self._ray = ray
        self._members = members
        self._timeout = timeout
        self._keepers = {
            number: hire(ray, Keeper, member, list(paths))
            for number, member in enumerate(members)
            if member.alive
        }

    @property
    def names(self) -> Sequence[str]:
        """The nodes."""
        return [member.name for member in self._members]

    def summaries(self) -> Mapping[int, bytes | str]:
        """Asks all nodes for their summaries; of one that fails, why."""
        asked = {number: keeper.summary.remote() for number, keeper in self._keepers.items()}
        self._ray.wait([*asked.values()], num_returns=len(asked), timeout=self._timeout)
        found: dict[int, bytes | str] = {}
        for number, member in enumerate(self._members):
            if not member.alive:
                found[number] = "Ray has lost this node"
                continue
            try:
                found[number] = self._ray.get(asked[number], timeout=0)
            except self._ray.exceptions.GetTimeoutError:
                found[number] = f"no answer after {self._timeout:g} s"
            except self._ray.exceptions.RayError as error:
                found[number] = reason_of(error)
        return found

    def ask(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Asks some nodes, all at once."""
        asked = {
            number: self._keepers[number].answer.remote(request)
            for number, request in requests.items()
        }
        found = {}
        for number, reference in asked.items():
            try:
                found[number] = self._ray.get(reference, timeout=self._timeout)
            except self._ray.exceptions.GetTimeoutError:
                raise InputError(
                    f"{self._members[number].name} gave no answer after {self._timeout:g} s",
                    "ncclscope collect --ray brings what the others have",
                ) from None
            except self._ray.exceptions.RayError as error:
                raise InputError(f"{self._members[number].name}: {reason_of(error)}") from None
        return found

    def close(self) -> None:
        """Ends the actors."""
        for keeper in self._keepers.values():
            self._ray.kill(keeper)
