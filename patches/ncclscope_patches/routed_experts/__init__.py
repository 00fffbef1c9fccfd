"""The experts that a model's routers chose, token by token, handed to whoever asks for them.

Training that replays an inference needs the choices which that inference made. They are captured
on the device, inside the forward pass (:mod:`.capture`), copied beside the main stream
(:mod:`.transfer`), put together by the scheduler (:mod:`.collector`), and written into the
answer (:mod:`.serving`), for those requests alone that opt in (:mod:`.requests`). Each token of a
result was captured or is marked as missing.

Importing this imports no torch. The worker's side does, and is imported by its modules' names:
:mod:`.layers`, :mod:`.capture`, :mod:`.layouts`, :mod:`.worker`.
"""

from ncclscope_patches.routed_experts.client import StreamReader, decode_choice
from ncclscope_patches.routed_experts.collector import Collector
from ncclscope_patches.routed_experts.deltas import RequestRows, StepDelta
from ncclscope_patches.routed_experts.encoding import ENCODINGS, decode_array, encode_array
from ncclscope_patches.routed_experts.requests import RoutingRequest
from ncclscope_patches.routed_experts.result import RoutedExperts, routed_tokens
from ncclscope_patches.routed_experts.serving import choice_fields
from ncclscope_patches.routed_experts.shape import RoutingShape
from ncclscope_patches.routed_experts.slots import SlotStore
from ncclscope_patches.routed_experts.support import Deployment, refuse_unsupported

__all__ = [
    "ENCODINGS",
    "Collector",
    "Deployment",
    "RequestRows",
    "RoutedExperts",
    "RoutingRequest",
    "RoutingShape",
    "SlotStore",
    "StepDelta",
    "StreamReader",
    "choice_fields",
    "decode_array",
    "decode_choice",
    "encode_array",
    "refuse_unsupported",
    "routed_tokens",
]
