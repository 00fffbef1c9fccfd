"""Which deployments routed experts are not captured in, and why."""

from __future__ import annotations

from dataclasses import dataclass

from ncclscope.errors import UsageError

__all__ = ["Deployment", "refuse_unsupported"]


@dataclass(frozen=True)
class Deployment:
    """What is asked of an engine at its start.

    Attributes:
        experts: Experts of a layer; 0 for a dense model.
        pipeline_parallel: Stages.
        context_parallel: Ranks that share one sequence, in prefill or in decode.
        kv_connector: Name of what brings KV blocks from elsewhere, such as the other side of
            a prefill/decode split; empty for none.
        kv_offload: Whether KV blocks leave the device and come back.
        generates: Whether the model generates text.
        hidden_routing: Layers whose kernel chooses experts and tells nobody, by name.
        micro_batches: Whether a step's batch is computed in several pieces at a time.
        other_runner: Whether a model runner is at work that the capture knows nothing of.
    """

    experts: int
    pipeline_parallel: int = 1
    context_parallel: int = 1
    kv_connector: str = ""
    kv_offload: bool = False
    generates: bool = True
    hidden_routing: tuple[str, ...] = ()
    micro_batches: bool = False
    other_runner: bool = False


def refuse_unsupported(deployment: Deployment) -> None:
    """Refuse what would give results with holes in them that nobody asked for.

    To be called before anything is allocated.

    Raises:
        UsageError: With all reasons.
    """
    reasons = list(_reasons(deployment))
    if reasons:
        raise UsageError(
            f"routed experts cannot be returned: {'; '.join(reasons)}",
            "start without them, or without what stands in their way",
        )


def _reasons(deployment: Deployment) -> list[str]:
    reasons = []
    if deployment.experts < 1:
        reasons.append("the model has no experts")
    if not deployment.generates:
        reasons.append("the model generates nothing")
    if deployment.pipeline_parallel > 1:
        reasons.append(
            f"with {deployment.pipeline_parallel} pipeline stages no rank sees the routing of "
            "all layers"
        )
    if deployment.context_parallel > 1:
        reasons.append("with context parallelism no rank sees all tokens of a sequence")
    if deployment.kv_connector:
        reasons.append(
            f"tokens whose KV blocks come through {deployment.kv_connector} are routed elsewhere"
        )
    if deployment.kv_offload:
        reasons.append(
            "KV blocks that were offloaded come back under other numbers, without their routing"
        )
    if deployment.hidden_routing:
        reasons.append(
            f"the kernel of {', '.join(deployment.hidden_routing)} does not tell which experts "
            "it chose"
        )
    if deployment.micro_batches:
        reasons.append("micro-batches that overlap write over each other's rows")
    if deployment.other_runner:
        reasons.append("this model runner is not one of those that tell which rows are whose")
    return reasons
