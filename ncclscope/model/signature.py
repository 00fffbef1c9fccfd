"""Signatures of calls and running hashes of sequences, as 64-bit numbers.

A communicator's members must post the same calls in the same order. The
*signature* of a call covers exactly the parameters in which they must agree.
Parameters that may differ by rank (own rows of a v-collective, own splits of
an all_to_all, the peer of a send) are recorded, but not part of the signature.

The *running hash* of a sequence is a polynomial in the signatures,

    hash(n) = hash(n - 1) * BASE + signature(call n)      modulo 2 ** 64

so that equal hashes mean equal prefixes, and the hash of any range follows
from those at its ends: ``stretch(a, b) = hash(b) - hash(a) * BASE ** (b - a)``.
The second property compares two sequences whose beginnings have been
overwritten, or whose beginnings differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import prod

BASE = 0x3A8F05C5
BASE_INVERSE = pow(BASE, -1, 1 << 64)
"""BASE is an odd number, so that it has an inverse modulo 2 ** 64, and below 2 ** 30, so that
CPython multiplies it as a single digit."""
MASK = (1 << 64) - 1
_CAPTURED = 0x9E3779B97F4A7C15
_REPLAYED = 0xB7E151628AED2A6B

P2P_OPS = frozenset({"send", "recv"})
VECTOR_OPS = frozenset({"all_gatherv", "reduce_scatterv", "scatterv", "gatherv"})
CREATION_OPS = frozenset({"new_group"})
"""Creations of process groups: ``sizes`` are the members' global ranks, ``dtype`` the backend."""
EXPERT_OPS = frozenset({"dispatch", "combine", "low_latency_dispatch", "low_latency_combine"})
"""All-to-all of tokens between experts: ``shape`` is ``[experts, hidden]``, or ``[hidden]`` where
the call does not give the number of experts. Each member has its own number of tokens."""
BARRIERS = frozenset({"barrier", "monitored_barrier"})
"""Operations that block their caller until all members have joined, on every backend."""
ROOTED_OPS = frozenset({"broadcast", "gather", "gatherv", "reduce", "scatter", "scatterv"})
"""Operations that one member may complete before another has joined."""
SYMMETRIC_OPS = frozenset(
    {
        *("all_gather", "all_gatherv", "all_reduce", "all_to_all", "barrier"),
        *("reduce_scatter", "reduce_scatterv"),
    }
)
"""Operations without a root, which complete on no rank before all members have joined."""

KNOWN_OPS = SYMMETRIC_OPS | P2P_OPS | VECTOR_OPS | CREATION_OPS | EXPERT_OPS | BARRIERS | ROOTED_OPS
"""Operations whose parameters are compared by their meaning; others are compared as they are."""

# Operations in which every member passes the same number of input elements.
_EQUAL_COUNT_OPS = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "gather", "all_to_all"}
)
# On these only the root has an input, and the number of output elements must agree.
_EQUAL_OUTPUT_OPS = frozenset({"scatter"})

# Other spellings of operations: NCCL's functions, torch's methods and Flight Recorder's names.
_ALIASES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gatherv",
    "_allgather_base": "all_gather",
    "_all_gather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatterv",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "isend": "send",
    "irecv": "recv",
    "recv_anysource": "recv",
}


def canonical_op(name: str) -> str:
    """Return torch's spelling of an operation, given any known spelling."""
    lowered = name.lower()
    return _ALIASES.get(lowered, lowered)


def canonical_dtype(name: str) -> str:
    """Return an element type without its package: ``bfloat16`` for ``torch.bfloat16``."""
    return str(name).rpartition(".")[2].lower()


def canonical_redop(name: str) -> str:
    """Return a reduction in lower case: ``sum`` for ``ReduceOp.SUM``."""
    return str(name).rpartition(".")[2].lower()


def sign(
    op: str,
    *,
    dtype: str | None = None,
    redop: str | None = None,
    root: int | None = None,
    numel: int | None = None,
    shape: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    out_shape: Sequence[int] | None = None,
    is_captured: bool = False,
    is_replayed: bool = False,
) -> int:
    """Return the 64-bit signature of one call.

    Args:
        op: Canonical name of the operation.
        dtype: Element type without ``torch.``, such as ``bfloat16``.
        redop: Reduction, lower case, such as ``sum``.
        root: Root as a rank of the communicator.
        numel: Elements of the input; taken from ``shape`` where absent.
        shape: Shape of the input.
        sizes: First dimensions per member of a v-collective, splits of an all_to_all, or
            members of a new group.
        out_shape: Shape of the output.
        is_captured: Whether it was posted while a CUDA graph was captured.
        is_replayed: Whether it ran as part of a CUDA graph.

    Returns:
        A number that is the same in every process and on every host; 0 for point-to-point
        calls, which are not part of a communicator's common sequence.
    """
    if op in P2P_OPS:
        return 0
    if numel is None and shape is not None:
        numel = prod(shape)
    agreed = ""
    if op in VECTOR_OPS:
        row = prod(shape[1:]) if shape else 1
        agreed = f"{','.join(map(str, sizes or ()))}x{row}"
    elif op in CREATION_OPS:
        agreed = ",".join(map(str, sizes or ()))
    elif op in EXPERT_OPS:
        agreed = ",".join(map(str, shape or ()))
    elif op == "all_to_all" and sizes is not None:
        # Splits differ by member; analyzers compare them pairwise.
        agreed = f"x{prod(shape[1:]) if shape else 1}"
    elif op in _EQUAL_COUNT_OPS:
        agreed = "" if numel is None else str(numel)
    elif op in _EQUAL_OUTPUT_OPS:
        agreed = "" if out_shape is None else str(prod(out_shape))
    text = f"{op}|{dtype or ''}|{redop or ''}|{'' if root is None else root}|{agreed}"
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    signed = int.from_bytes(digest, "little") | 1
    if is_replayed:
        return replayed(signed)
    return captured(signed) if is_captured else signed


def captured(signature: int) -> int:
    """Return the signature of the same call posted while a CUDA graph is captured.

    A captured call does not run, so all members or none must capture it.
    """
    return (signature * _CAPTURED & MASK) | 1


def replayed(signature: int) -> int:
    """Return the signature of the same call replayed from a CUDA graph.

    NCCL requires that all members or none capture a collective. The graph that contains it does
    not matter: ranks may split the same calls into different graphs.
    """
    return (signature * _REPLAYED & MASK) | 1


def extend(running: int, signature: int) -> int:
    """Return the running hash after one more call."""
    return (running * BASE + signature) & MASK


def stretch(before: int, after: int, length: int) -> int:
    """Return the hash of a range of calls.

    Args:
        before: Running hash before the range.
        after: Running hash after it.
        length: Number of calls in it.
    """
    return (after - before * pow(BASE, length, 1 << 64)) & MASK
