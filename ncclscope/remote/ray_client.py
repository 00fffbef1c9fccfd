"""Node servers as actors, one on each node of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ncclscope.collect.ray_nodes import Member, hire, reason_of
from ncclscope.remote.fleet import all_answered, answered
from ncclscope.remote.keeper import Keeper


class RayClient:
    """Queries the nodes of a Ray cluster.

    Args:
        ray: The module from :func:`ncclscope.collect.ray_nodes.connect`.
        members: The nodes.
        paths: Directories of their rings; NCCLSCOPE_DIR of each node if empty.
        timeout: Seconds that a node may take to answer.
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
        """Names of the nodes."""
        return [member.name for member in self._members]

    def summaries(self) -> Mapping[int, bytes | str]:
        """Return each node's summary, or the reason why it failed, by node number."""
        return self._ask_all("summary")

    def reports(self) -> Mapping[int, bytes | str]:
        """Return each node's report, or the reason why it failed, by node number."""
        return self._ask_all("report")

    def ask_reporters(self, method: str, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Return what reporters answer by node number, without nodes that fail."""
        return answered(self._gather(method, requests))

    def _ask_all(self, method: str) -> Mapping[int, bytes | str]:
        found: dict[int, bytes | str] = {
            number: "Ray has lost this node"
            for number, member in enumerate(self._members)
            if not member.alive
        }
        return found | self._gather(method, dict.fromkeys(self._keepers, b""))

    def _gather(self, method: str, requests: Mapping[int, bytes]) -> dict[int, bytes | str]:
        """Wait for all answers until the timeout; a slow node does not cost the others'."""
        asked = {
            node: self._keepers[node].serve.remote(method, one) for node, one in requests.items()
        }
        if asked:
            self._ray.wait([*asked.values()], num_returns=len(asked), timeout=self._timeout)
        found: dict[int, bytes | str] = {}
        for number, reference in asked.items():
            try:
                found[number] = self._ray.get(reference, timeout=0)
            except self._ray.exceptions.GetTimeoutError:
                found[number] = f"no answer after {self._timeout:g} s"
            except self._ray.exceptions.RayError as error:
                found[number] = reason_of(error)
        return found

    def ask(self, requests: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Send requests to some nodes in parallel; return their answers by node number.

        Raises:
            LostNodeError: A node failed or did not answer in time.
        """
        help = "collect the files of the other nodes: ncclscope collect --ray"
        return all_answered(self._gather("answer", requests), self.names, help)

    def close(self) -> None:
        """Kill the actors."""
        for keeper in self._keepers.values():
            self._ray.kill(keeper)
