"""Test, when a worker starts, that what a router captures is what it returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ncclscope.errors import UsageError

_ROWS = 4


def check_routers(modules: Iterable[tuple[str, Any]], hidden_size: int, dtype: Any) -> None:
    """Route a few rows through one router of each kind, and compare what it captured.

    Nothing is posted, and no random number is drawn. Routers under expert load balancing are left
    out: they return physical ids, and count their rows.

    Args:
        modules: Names and modules of the mixture-of-experts layers.
        hidden_size: Width of a row.
        dtype: Type of the model's activations.

    Raises:
        UsageError: A router captures something else, nothing, or cannot be called.
    """
    tested = set()
    for name, module in modules:
        router = module.router
        if type(router) in tested or getattr(router, "eplb_state", None) is not None:
            continue
        tested.add(type(router))
        captured: list[torch.Tensor] = []
        before = router.capture_fn
        router.set_capture_fn(lambda ids, kept=captured: kept.append(ids.clone()))
        try:
            device = next(module.parameters()).device
            hidden = _wave(_ROWS, hidden_size, dtype, device)
            logits = _wave(_ROWS, int(router.global_num_experts), dtype, device)
            returned = router.select_experts(hidden, logits)[1]
        except Exception as error:
            raise _refusal(name, router, f"it cannot be called: {error!r}") from error
        finally:
            router.set_capture_fn(before)
        if len(captured) != 1:
            raise _refusal(name, router, f"it captured {len(captured)} times in one call")
        if not torch.equal(captured[0].long(), returned.long()):
            raise _refusal(name, router, "it captured other experts than it returned")


def _wave(rows: int, columns: int, dtype: Any, device: Any) -> torch.Tensor:
    """Return distinct values between -1 and 1."""
    angles = torch.arange(rows * columns, dtype=torch.float32, device=device)
    return angles.sin().reshape(rows, columns).to(dtype)


def _refusal(name: str, router: Any, reason: str) -> UsageError:
    return UsageError(
        f"routed experts cannot be returned: {type(router).__name__} of {name}: {reason}",
        "start without routed experts",
    )
