"""A dispatcher for mixture-of-experts layers whose ranks cannot diverge.

    groups = ExpertGroups.create(tp=4)                    # on every rank, after init_process_group
    placement = ExpertPlacement(256, groups.expert.size)
    dispatcher = MoEDispatcher(groups, placement, strategy="always")

    sizes = dispatcher.agree(hidden.shape[0])             # once a step
    sent = dispatcher.dispatch(hidden, topk_weights, topk_ids, sizes)
    output = experts(sent.hidden, sent.weights, sent.ids)  # this rank's experts, of all tokens
    hidden = dispatcher.combine(sent, output)

The collectives of a rank depend only on values that are equal on all ranks: the strategy, the
agreed sizes and the tensors' types. They do not depend on the number of tokens routed to the rank's
own experts. The exception is the strategy ``data_dependent``, a buggy reference; see
:mod:`~ncclscope_patches.moe_dispatch.strategies`.

It works with any process groups of torch.distributed, such as gloo and NCCL. It patches nothing: a
program must call it. It has no backward pass.
"""

from ncclscope_patches.moe_dispatch.dispatcher import MoEDispatcher
from ncclscope_patches.moe_dispatch.experts import LocalExperts
from ncclscope_patches.moe_dispatch.groups import ExpertGroups, RowGroup
from ncclscope_patches.moe_dispatch.placement import ExpertPlacement, sequence_chunk
from ncclscope_patches.moe_dispatch.strategies import STRATEGIES, Dispatched

__all__ = [
    "STRATEGIES",
    "Dispatched",
    "ExpertGroups",
    "ExpertPlacement",
    "LocalExperts",
    "MoEDispatcher",
    "RowGroup",
    "sequence_chunk",
]
