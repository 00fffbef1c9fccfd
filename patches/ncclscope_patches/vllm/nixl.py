"""Record what only NIXL's worker knows of a transfer: handshakes, leases and failures."""

from __future__ import annotations

import time
from typing import Any

from ncclscope.clock import now_ns
from ncclscope.tracing import transfers
from ncclscope_patches.probes.probe import Note


class NixlTransfers(Note):
    """Adds phases, deadlines and reasons to the transfers of vLLM's NIXL connectors."""

    name = "vllm_nixl"
    target = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker"
    supports = "the NIXL connector of vllm 0.26 and later"

    def install(self, module: Any) -> None:
        worker = module.NixlBaseConnectorWorker
        self.replace(worker, "_background_nixl_handshake", _handshake)
        self.replace(worker, "_log_failure", _failure)
        self.replace(worker, "_handle_heartbeat", _arguments, _extended)
        # Before vLLM 0.30 leases are looked through right after this function, and in no own one.
        if not self.replace(worker, "_reap_expired_send_leases", _expired):
            self.replace(worker, "_sync_device_after_mamba_recv", _expired)


class NixlReads(Note):
    """Records when a worker begins to read another engine's blocks."""

    name = "vllm_nixl_reads"
    target = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker"
    supports = "the NIXL connector of vllm 0.26 and later"

    def install(self, module: Any) -> None:
        self.replace(module.NixlPullConnectorWorker, "_read_blocks_for_req", _arguments, _reading)


def _reading(token: Any, _result: Any) -> None:
    args, kwargs = token
    worker, request = args[0], args[1] if len(args) > 1 else kwargs["req_id"]
    if request in worker._recving_transfers:
        transfers.change("recv", request, phase="read")


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args, kwargs


def _handshake(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record that a transfer waits until its engines know each other."""
    transfers.change("recv", args[1] if len(args) > 1 else kwargs["req_id"], phase="handshake")


def _failure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record why a transfer failed, by the kind of failure and the type of the error."""
    names = ("self", "failure_type", "req_id", "msg", "error")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    request, error = given.get("req_id"), given.get("error")
    if request is None:
        return
    kind = str(given["failure_type"])
    why = "" if error is None else f" ({_reason(error)})"
    transfers.change("recv", request, state="failed", phase=f"{kind}{why}")


def _reason(error: BaseException) -> str:
    """Return the known reasons in words, others by the type of the error."""
    if type(error).__name__ == "Again":
        return "no answer"
    if "compatibility hash" in str(error):
        return "incompatible configuration"
    if "block size" in str(error):
        return "block sizes do not fit"
    return type(error).__name__


def _extended(token: Any, _result: Any) -> None:
    """Record that the receiving engine has extended the lease on blocks."""
    args, kwargs = token
    worker, payload = args[0], args[1] if len(args) > 1 else kwargs["payload"]
    now, clock = now_ns(), time.perf_counter()
    for request in payload.split(","):
        expires = worker._reqs_to_send.get(request)
        if expires is not None:
            deadline = now + int((expires - clock) * 1e9)
            transfers.change("send", request, phase="asked for", deadline_ns=deadline)


def _expired(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Record the blocks that are about to be freed because nobody pulled them in time."""
    now = time.perf_counter()
    leases = args[0]._reqs_to_send.items()
    for request in [request for request, expires in leases if now >= expires]:
        transfers.change("send", request, state="expired", phase="lease over")
