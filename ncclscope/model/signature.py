"""What must be equal on all members of a communicator, as one 64-bit number.

A communicator's members must post the same calls in the same order. The
*signature* of a call covers exactly the parameters in which they must agree;
what may differ by rank (own rows of a v-collective, own splits of an
all_to_all, the peer of a send) is kept in the record and left out here.

The *running hash* of a sequence is a polynomial in the signatures,

    hash(n) = hash(n - 1) * BASE + signature(call n)      modulo 2 ** 64

so that equal hashes mean equal prefixes, and the hash of any stretch follows
from those at its ends: ``stretch(a, b) = hash(b) - hash(a) * BASE ** (b - a)``.
The second property compares two sequences whose beginnings have been
overwritten, or whose beginnings differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import prod

__all__ = [
    "BARRIERS",
    "BASE",
    "BASE_INVERSE",
    "CREATION_OPS",
    "MASK",
    "P2P_OPS",
    "ROOTED_OPS",
    "VECTOR_OPS",
    "canonical_dtype",
    "canonical_op",
    "canonical_redop",
    "captured",
    "extend",
    "replayed",
    "sign",
    "stretch",
]

BASE = 0x3A8F05C5
BASE_INVERSE = pow(BASE, -1, 1 << 64)
"""Odd, so that it has an inverse modulo 2 ** 64, and below 2 ** 30, so that CPython
multiplies it as a single digit."""
MASK = (1 << 64) - 1
_CAPTURED = 0x9E3779B97F4A7C15
_REPLAYED = 0xB7E151628AED2A6B

P2P_OPS = frozenset({"send", "recv"})
VECTOR_OPS = frozenset({"all_gatherv", "reduce_scatterv", "scatterv", "gatherv"})
CREATION_OPS = frozenset({"new_group"})
"""Creations of process groups: ``sizes`` are the members' global ranks, ``dtype`` the backend."""
BARRIERS = frozenset({"barrier", "monitored_barrier"})
"""Operations that hold their caller until all have come, on every backend."""
ROOTED_OPS = frozenset({"broadcast", "gather", "gatherv", "reduce", "scatter", "scatterv"})
"""Operations that one member may have completed before another has come."""

# Operations in which every member passes the same number of input elements.
_EQUAL_COUNT_OPS = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "gather", "all_to_all"}
)
# On these the input exists on the root alone, and what must agree is the output's count.
_EQUAL_OUTPUT_OPS = frozenset({"scatter"})

# Other spellings of the same thing: NCCL's functions, torch's methods and Flight Recorder's names.
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
    """Returns torch's spelling of an operation, whatever spelling came in."""
    lowered = name.lower()
    return _ALIASES.get(lowered, lowered)


def canonical_dtype(name: str) -> str:
    """Returns an element type without its package: ``bfloat16`` for ``torch.bfloat16``."""
    return str(name).rpartition(".")[2].lower()


def canonical_redop(name: str) -> str:
    """Returns a reduction in lower case: ``sum`` for ``ReduceOp.SUM``."""
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
    """Returns the 64-bit signature of one call.

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
        is_replayed: Whether it was carried out as a part of a CUDA graph.

    Returns:
        A number that is the same in every process and on every host; 0 for point-to-point
        calls, which are no part of a communicator's common sequence.
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
    elif op == "all_to_all" and sizes is not None:
        # Splits are each member's own business; analyzers compare them pairwise.
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
    """Returns the signature of the same call posted while a CUDA graph is captured.

    A captured call is not carried out, so that all members must capture it or none.
    """
    return (signature * _CAPTURED & MASK) | 1


def replayed(signature: int) -> int:
    """Returns the signature of the same call carried out as a part of a CUDA graph.

    NCCL wants a collective captured by all of its members or by none. Of which graph it is a
    part does not count: ranks may cut the same calls into graphs as they like.
    """
    return (signature * _REPLAYED & MASK) | 1


def extend(running: int, signature: int) -> int:
    """Returns the running hash after one more call."""
    return (running * BASE + signature) & MASK


def stretch(before: int, after: int, length: int) -> int:
    """Returns the hash of ``length`` calls from the running hashes at both ends."""
    return (after - before * pow(BASE, length, 1 << 64)) & MASK
