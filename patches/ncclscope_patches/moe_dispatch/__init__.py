"""A dispatcher of mixture-of-experts layers whose ranks cannot part.

    groups = ExpertGroups.create(tp=4)                    # on every rank, after init_process_group
    placement = ExpertPlacement(256, groups.expert.size)
    dispatcher = MoEDispatcher(groups, placement, strategy="always")

    sizes = dispatcher.agree(hidden.shape[0])             # once a step
    sent = dispatcher.dispatch(hidden, topk_weights, topk_ids, sizes)
    output = experts(sent.hidden, sent.weights, sent.ids)  # this rank's experts, of all tokens
    hidden = dispatcher.combine(sent, output)

Which collective a rank posts depends on nothing but what is equal on all ranks: the strategy,
the sizes that were agreed on, the tensors' types. How many tokens are routed to the rank's own
experts does not count. The one exception is the strategy ``data_dependent``, which is there to
be caught; see :mod:`~ncclscope_patches.moe_dispatch.strategies`.

It works over any process groups of torch.distributed, gloo and NCCL among them. It patches
nothing: a program has to call it. There is no backward pass.
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
