"""Return the experts that a model's routers chose for each token, to requests that ask for them.

Training that replays an inference needs its routing. The routing is captured on the device inside
the forward pass (:mod:`.capture`), copied on a second stream (:mod:`.transfer`), collected by the
scheduler (:mod:`.collector`), and written into the answer (:mod:`.serving`). This happens only for
requests that opt in (:mod:`.requests`). Each token of a result is captured or marked as missing.

Importing this package does not import torch. The worker's modules do, and are imported by name:
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
