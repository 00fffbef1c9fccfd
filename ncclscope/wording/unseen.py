"""Sentences about calls that a record lacks, or that cannot be compared."""

from __future__ import annotations

from ncclscope.model import Communicator
from ncclscope.wording.names import comm_text


def hole(comm: Communicator, seq: int, *, has_more: bool) -> str:
    """Say that a call near a number is not recorded, or that one rank alone recorded it."""
    where = f"near #{seq} on {comm.label or comm.key[:12]}"
    if has_more:
        return (
            f"it alone recorded a call {where}, and all went on: the call was refused, or those of "
            f"its peers are not recorded"
        )
    return f"a call {where} is not recorded, though its peers posted it and all went on"


def hole_of_op(comm: Communicator, op: str) -> str:
    """Say that no call of an operation is recorded."""
    return (
        f"{op} on {comm.label or comm.key[:12]} is not recorded, though its peers posted it and "
        f"all went on"
    )


def mixed(comm: Communicator) -> str:
    """Say that probes and NCCL's plugin numbered the calls of a communicator differently."""
    return (
        f"the calls on {comm_text(comm)} are not compared: probes recorded those of some ranks and "
        f"NCCL's plugin those of others, and these are numbered differently"
    )
