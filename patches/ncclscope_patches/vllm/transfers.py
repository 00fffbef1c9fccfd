"""Record the KV transfers of an engine: one end of each, as its connector handles it.

vLLM creates one connector in the scheduler and one in each worker. The scheduler's shows when a
request arrives, gets blocks, and is done; the worker's shows when the transfer begins and ends.
The class that the factory creates is wrapped, so every connector is covered. Of a request, only
its ids, number of blocks and addresses are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ncclscope.clock import now_ns
from ncclscope.model import Transfer
from ncclscope.tracing import session, transfers
from ncclscope_patches.probes.probe import Note

ATTRIBUTE = "_ncclscope_engine"
_LEASE_SECONDS = 30


class VllmTransfers(Note):
    """Wraps the methods of the connectors that vLLM's factory creates."""

    name = "vllm_transfers"
    target = "vllm.distributed.kv_transfer.kv_connector.factory"

    def install(self, module: Any) -> None:
        factory = module.KVConnectorFactory
        create = factory.create_connector.__func__  # a class method
        guarded = self.guard(create, self._creating, self._created)
        self.put(factory, "create_connector", classmethod(guarded))

    def put(self, owner: Any, name: str, function: Any) -> bool:
        """Replace an attribute, also by a class method, on which no attribute can be set.

        Args:
            owner: As in :meth:`Patch.put`.
            name: Likewise.
            function: Likewise, or a class method.
        """
        if isinstance(function, classmethod):
            original = vars(owner).get(name)
            setattr(owner, name, function)
            self._replaced.append((owner, name, original, function))
            return True
        return super().put(owner, name, function)

    def _creating(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = ("cls", "config", "role", "kv_cache_config")
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _created(self, given: dict[str, Any], connector: Any) -> None:
        config = given["config"].kv_transfer_config
        worker = given["role"].name == "WORKER"
        found = _Engine(config, connector, given.get("kv_cache_config"))
        setattr(connector, ATTRIBUTE, found)
        session.describe(kv_engine=found.about())
        kind = type(connector)
        if worker:
            # Only the parts of a MultiConnector know what its worker is asked for.
            for part in (connector, *getattr(connector, "sub_connectors", ())):
                setattr(part, ATTRIBUTE, found)
                self.replace(type(part), "start_load_kv", _loading)
                for name in ("get_transfer_results", "get_finished"):
                    self.replace(type(part), name, _self, _worker_results)
        else:
            self.replace(kind, "on_new_request", _arriving)
            self.replace(kind, "get_num_new_matched_tokens", _request, _matched)
            self.replace(kind, "update_state_after_alloc", _allocated)
            self.replace(kind, "update_connector_output", _reported)
            for name in ("request_finished", "request_finished_all_groups"):
                self.replace(kind, name, _request, _finished)


class _Engine:
    """What is the same for all transfers of a connector.

    Args:
        config: vLLM's configuration of KV transfers.
        connector: The connector.
        caches: vLLM's configuration of the KV cache; None where the factory is not given it.
    """

    def __init__(self, config: Any, connector: Any, caches: Any) -> None:
        self._config = config
        self.connector = str(config.kv_connector)
        self.id = str(getattr(connector, "engine_id", None) or config.engine_id)
        self.block_bytes = _block_bytes(caches)
        self.lease = _LEASE_SECONDS
        parts = [part.get("kv_connector") for part in _parts(config)]
        self.leases = any(str(name).startswith("Nixl") for name in (self.connector, *parts))
        """Whether the connector frees blocks that nobody pulls, after a lease."""
        extras = [part.get("kv_connector_extra_config") for part in _parts(config)]
        for settings in (config.kv_connector_extra_config, *extras):
            self.lease = int((settings or {}).get("kv_lease_duration", self.lease))

    def about(self) -> dict[str, Any]:
        """Return what the process description says of the engine."""
        return {
            "id": self.id,
            "connector": self.connector,
            "role": str(getattr(self._config, "kv_role", None) or ""),
            "on_failure": str(getattr(self._config, "kv_load_failure_policy", None) or ""),
            "lease_seconds": self.lease if self.leases else 0,
        }


def _parts(config: Any) -> list[dict[str, Any]]:
    """Return the settings of the connectors that a MultiConnector consists of."""
    found = (config.kv_connector_extra_config or {}).get("connectors")
    return [one for one in found or () if isinstance(one, dict)]


def _block_bytes(caches: Any) -> int:
    """Return the size of one KV block in a worker's memory; 0 when unknown."""
    try:
        return int(sum(one.size for one in caches.kv_cache_tensors) // caches.num_blocks)
    except (AttributeError, TypeError, ZeroDivisionError):
        return 0


# --- the scheduler -------------------------------------------------------------------------------


def _arriving(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record a request whose blocks another engine holds, when it reaches the scheduler."""
    connector, request = args[0], args[1] if len(args) > 1 else kwargs["request"]
    given = request.kv_transfer_params
    if given and given.get("do_remote_prefill"):
        _expect(getattr(connector, ATTRIBUTE), request.request_id, given, phase="queued")


def _request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return args[0], args[1] if len(args) > 1 else kwargs["request"]


def _matched(token: tuple[Any, Any], result: Any) -> None:
    """Record that a request may load blocks, and waits for free ones to load them into."""
    connector, request = token
    count, later = result
    if not count or not later:
        return
    known = transfers.find("recv", request.request_id)
    if known is None:
        given = request.kv_transfer_params or {}
        _expect(getattr(connector, ATTRIBUTE), request.request_id, given, phase="blocks")
    elif known.phase == "queued":
        transfers.change("recv", request.request_id, phase="blocks")


def _allocated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record that a request has blocks to load into, and that the workers are asked to."""
    request = args[1] if len(args) > 1 else kwargs["request"]
    tokens = args[3] if len(args) > 3 else kwargs["num_external_tokens"]
    known = transfers.find("recv", request.request_id)
    if known is None or known.state != "waiting":
        return
    if tokens:
        transfers.change("recv", request.request_id, state="started", phase="pull")
    else:  # all of it is in the own cache
        transfers.change("recv", request.request_id, state="completed", phase="cached")


def _reported(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record what all workers together report as done."""
    output = args[1] if len(args) > 1 else kwargs["connector_output"]
    failed = getattr(output, "failed_recving", None)
    _end(output.finished_sending, output.finished_recving, failed)


def _finished(token: tuple[Any, Any], result: Any) -> None:
    """Record that a finished request's blocks are kept for another engine, or that one gave up."""
    connector, request = token
    number = request.request_id
    transfers.change("recv", number, state="failed", phase="aborted")
    kept, answer = result
    if not kept:
        return
    engine = getattr(connector, ATTRIBUTE)
    given = answer or request.kv_transfer_params or {}
    deadline = now_ns() + engine.lease * 1_000_000_000 if engine.leases else 0
    _put(engine, "send", number, given, phase="held", deadline_ns=deadline)


# --- the workers ---------------------------------------------------------------------------------


def _loading(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record the transfers that the scheduler asks this worker for."""
    connector = args[0]
    metadata = getattr(connector, "_connector_metadata", None)
    asked = getattr(metadata, "reqs_to_recv", None)
    held = getattr(metadata, "reqs_to_send", None)
    if asked and isinstance(asked, Mapping):
        engine = getattr(connector, ATTRIBUTE)
        for number, one in asked.items():
            remote = getattr(one, "remote", None)
            given = {} if remote is None else _remote_params(remote)
            if getattr(one, "awaiting_kvs", True):
                _expect(engine, number, given, state="started", phase="pull")
    if held and isinstance(held, Mapping):
        _hold(getattr(connector, ATTRIBUTE), held, getattr(metadata, "scheduler_clock", 0.0))


def _remote_params(remote: Any) -> dict[str, Any]:
    return {
        "remote_engine_id": getattr(remote, "engine_id", None),
        "remote_request_id": getattr(remote, "request_id", None),
        "remote_host": getattr(remote, "host", None),
        "remote_port": getattr(remote, "port", None),
        "remote_block_ids": getattr(remote, "block_ids", None),
    }


def _hold(engine: _Engine, held: Mapping[str, Any], clock: float) -> None:
    now = now_ns()
    for number, expires in held.items():
        seconds = expires - clock if clock and isinstance(expires, float) else 0.0
        deadline = now + int(seconds * 1e9) if seconds > 0 else 0
        known = transfers.find("send", number)
        if known is None or known.ended:
            _put(engine, "send", number, {}, phase="held", deadline_ns=deadline)


def _self(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    return args[0]


def _worker_results(_connector: Any, result: Any) -> None:
    """Record what this worker has done."""
    if isinstance(result, tuple):
        sent, received = result
        _end(sent, received, None)
    else:
        _end(result.finished_sending, result.finished_recving, result.failed_recving)


# --- both ----------------------------------------------------------------------------------------


def _expect(engine: _Engine, number: str, given: Mapping[str, Any], **how: Any) -> None:
    peer = str(given.get("remote_engine_id") or "")
    _put(engine, "recv", number, given, peer=peer, **how)


def _put(
    engine: _Engine, direction: str, number: str, given: Mapping[str, Any], **how: Any
) -> None:
    """Record a transfer, if the ring can.

    Args:
        engine: The engine of this end.
        direction: ``recv`` or ``send``.
        number: The engine's id of the request.
        given: What is known of the other end.
        **how: Further attributes of the :class:`Transfer`.
    """
    blocks = _count(given.get("remote_block_ids"))
    transfers.put(
        Transfer(
            id=_shared_id(given, number),
            engine=engine.id,
            direction=direction,
            request=str(number),
            host=str(given.get("remote_host") or ""),
            port=_port(given.get("remote_port")),
            blocks=blocks,
            bytes=blocks * engine.block_bytes,
            **how,
        )
    )


def _end(
    sent: Iterable[str] | None, received: Iterable[str] | None, failed: Iterable[str] | None
) -> None:
    for number in failed or ():
        known = transfers.find("recv", number)
        why = known.phase if known is not None and known.phase.endswith("failed") else "failed"
        transfers.change("recv", number, state="failed", phase=why)
    for number in received or ():
        transfers.change("recv", number, state="completed", phase="done")
    for number in sent or ():
        transfers.change("send", number, state="completed", phase="done")


def _shared_id(given: Mapping[str, Any], number: str) -> str:
    """Return the id that both ends know: the sender's request, or the id of the transfer."""
    return str(given.get("remote_request_id") or given.get("transfer_id") or number)


def _count(blocks: Any) -> int:
    """Return the number of KV blocks in a list, or in a list for each group of layers."""
    try:
        return sum(len(one) if isinstance(one, (list, tuple)) else 1 for one in blocks or ())
    except TypeError:
        return 0


def _port(value: Any) -> int:
    try:
        return int(value or 0) & 0xFFFF
    except (TypeError, ValueError):
        return 0
