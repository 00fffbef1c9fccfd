"""The vocabulary: what was recorded, and what is concluded from it.

Analyzers turn a :class:`Run` into :class:`Finding` objects; a verdict is the one root cause among
them. Nothing here imports anything else of ours.
"""

from ncclscope.model.call import (
    CREATION_SUFFIX,
    Activity,
    Call,
    Communicator,
    DamagedCall,
    State,
    Step,
)
from ncclscope.model.finding import Finding
from ncclscope.model.log import CallLog
from ncclscope.model.run import Rank, Run

__all__ = [
    "CREATION_SUFFIX",
    "Activity",
    "Call",
    "CallLog",
    "Communicator",
    "DamagedCall",
    "Finding",
    "Rank",
    "Run",
    "State",
    "Step",
]
