"""Record the exchange of tokens between experts by DeepEP and NIXL EP.

Their kernels write to the memory of other GPUs without NCCL, and wait for all members as a
collective does. The calls on each buffer have their own sequence, named after the buffer's group:
``world/deep_ep`` next to ``world``, ``world/deep_ep-2`` for a second buffer.

Members must agree in experts, hidden size and element type, and each has its own number of tokens.
So the recorded shape is ``[experts, hidden]``, or ``[hidden]`` where the number of experts is in a
handle.
"""

from __future__ import annotations

from collections import Counter
from inspect import signature
from typing import Any, ClassVar

from ncclscope.tracing import coverage, session
from ncclscope_patches.probes import process_groups
from ncclscope_patches.probes.launches import note_cooperative
from ncclscope_patches.probes.posting import Read, put_posting
from ncclscope_patches.probes.probe import Patch
from ncclscope_patches.probes.recording import NOBODY, Handle, Handles

_buffers: Counter[str] = Counter()
"""Number of buffers, by key of the group and library."""
session.on_reset(_buffers.clear)


class _BufferProbe(Patch):
    """Records the methods of one class of buffers.

    Each target is a module that its package imports after torch, because patches watch for imports
    only from the import of torch on.

    Attributes:
        owner: The class.
        backend: Its library's name in records.
        methods: Operation of each method, by the method's name.
        ready: The method after which a buffer knows its group.
    """

    owner: ClassVar[str] = "Buffer"
    backend: ClassVar[str]
    methods: ClassVar[dict[str, str]]
    ready: ClassVar[str] = "__init__"

    def __init__(self) -> None:
        super().__init__()
        self.handles = Handles(self._open)

    def install(self, module: Any) -> None:
        cls = getattr(module, self.owner, None)
        if cls is None:
            self.note_state(coverage.ABSENT, f"{self.target} has no {self.owner}")
            return
        for name, op in self.methods.items():
            if hasattr(cls, name):
                # Without the place of its kernel, which runs on a stream of the library, the GPU
                # does not count the call.
                put_posting(self, cls, name, _reader(op, getattr(cls, name)), self.handles)

        def made(token: Any, _result: Any) -> None:
            self.handles.of(token[0][0])
            note_cooperative(self.backend, getattr(cls, "num_sms", 0))

        # A member without any call must be known as a member.
        self.replace(cls, self.ready, after=made)

    def _open(self, buffer: Any) -> Handle:
        group = self._group(buffer)
        if group is None:
            coverage.unseen(self.backend, f"{self.backend} exchanges tokens without a torch group")
            return NOBODY
        comm = process_groups.handles.of(group).comm
        if comm is None:
            return NOBODY
        key = f"{comm.key}/{self.backend}"
        _buffers[key] += 1
        number = _buffers[key]
        name = self.backend if number == 1 else f"{self.backend}-{number}"
        return process_groups.of_library(group, self.backend, name)

    def _group(self, buffer: Any) -> Any:
        """Return a buffer's process group; None if it has another kind of communicator."""
        group = buffer.group
        return group if isinstance(group, process_groups.c10d().ProcessGroup) else None


def _reader(op: str, method: Any) -> Read:
    # By name, since positions differ by version of the library.
    names = tuple(signature(method).parameters)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        tokens = _tokens(given)
        experts = _experts(given)
        hidden = tokens.shape[-1]
        return op, (hidden,) if experts is None else (experts, hidden), tokens.dtype

    return read


def _tokens(given: dict[str, Any]) -> Any:
    """Return the tensor of tokens `[..., hidden]`, which may come with its scales."""
    tokens = given["x"]
    return tokens[0] if isinstance(tokens, tuple) else tokens


def _experts(given: dict[str, Any]) -> int | None:
    experts = given.get("num_experts")
    if experts is not None:
        return int(experts)
    counts = given.get("num_tokens_per_expert")
    if counts is not None:
        return int(counts.shape[0])
    # ElasticBuffer's handles know it; those of Buffer are tuples.
    found: int | None = getattr(given.get("handle"), "num_experts", None)
    return found


class DeepEpProbe(_BufferProbe):
    """DeepEP's ``Buffer``: kernels for throughput and for low latency."""

    name = "deep_ep"
    target = "deep_ep.buffers.legacy"
    supports = "deep_ep 2.0 to 2.1"
    backend = "deep_ep"
    methods: ClassVar[dict[str, str]] = {
        "dispatch": "dispatch",
        "combine": "combine",
        "low_latency_dispatch": "low_latency_dispatch",
        "low_latency_combine": "low_latency_combine",
    }


class DeepEpFirstProbe(DeepEpProbe):
    """The same class in DeepEP 1."""

    name = "deep_ep_1"
    target = "deep_ep.buffer"
    supports = "deep_ep 1.2"


class DeepEpElasticProbe(_BufferProbe):
    """DeepEP's ``ElasticBuffer``."""

    name = "deep_ep_elastic"
    target = "deep_ep.buffers.elastic"
    supports = "deep_ep 2.0 to 2.1"
    owner = "ElasticBuffer"
    backend = "deep_ep"
    methods: ClassVar[dict[str, str]] = {"dispatch": "dispatch", "combine": "combine"}


class NixlEpProbe(_BufferProbe):
    """NIXL EP's ``Buffer``, whose ``dispatch`` and ``combine`` call those for low latency."""

    name = "nixl_ep"
    target = "nixl_ep_cu13.buffer"
    supports = "nixl 1.5"
    backend = "nixl_ep"
    methods: ClassVar[dict[str, str]] = {
        "ht_dispatch": "dispatch",
        "ht_combine": "combine",
        "low_latency_dispatch": "low_latency_dispatch",
        "low_latency_combine": "low_latency_combine",
    }
    ready = "update_memory_buffers"

    def _group(self, buffer: Any) -> Any:
        """Return a buffer's process group.

        A buffer may know only a store and its number of ranks. If all ranks of the job exchange
        tokens, its ranks are those of the default group.
        """
        if buffer.group is None and buffer.comm is None:
            default = process_groups.c10d()._world.default_pg
            if default is not None and buffer.group_size == default.size():
                return default
        return super()._group(buffer)


class NixlEpCu12Probe(NixlEpProbe):
    """The same class for CUDA 12."""

    name = "nixl_ep_cu12"
    target = "nixl_ep_cu12.buffer"
