"""The data model: records of a run, and the findings that analyzers make of them.

Analyzers turn a :class:`Run` into :class:`Finding` objects; a verdict is the one root cause among
them. This package imports no other package of ncclscope.
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
from ncclscope.model.finding import Blame, Claim, Fact, Finding
from ncclscope.model.log import CallLog
from ncclscope.model.run import Rank, Run
from ncclscope.model.transfer import Transfer

__all__ = [
    "CREATION_SUFFIX",
    "Activity",
    "Blame",
    "Call",
    "CallLog",
    "Claim",
    "Communicator",
    "DamagedCall",
    "Fact",
    "Finding",
    "Rank",
    "Run",
    "State",
    "Step",
    "Transfer",
]
