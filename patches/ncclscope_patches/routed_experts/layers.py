"""The layers of a model that route tokens, numbered within that model.

With one numbering for all models of a process, the second model's numbers would exceed its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ncclscope.errors import UsageError
from ncclscope_patches.routed_experts.capture import CaptureBuffer
from ncclscope_patches.routed_experts.shape import RoutingShape


class RoutedLayers:
    """Names and numbers of one model's layers that route tokens.

    Args:
        names: The model's names of the layers, in execution order.
        model: Name of the model, such as ``target`` or ``draft``.

    Raises:
        UsageError: There are no names, or two are equal.
    """

    def __init__(self, names: Iterable[str], model: str = "target") -> None:
        self.names = tuple(names)
        self.model = model
        self._numbers = {name: number for number, name in enumerate(self.names)}
        if not self.names:
            raise UsageError(f"no layer of the {model} model routes tokens")
        if len(self._numbers) < len(self.names):
            raise UsageError(f"two layers of the {model} model have one name")

    @classmethod
    def of(
        cls, module: nn.Module, routes: Callable[[nn.Module], bool], model: str = "target"
    ) -> RoutedLayers:
        """Find the layers of a model that route tokens.

        Args:
            module: The model.
            routes: Return whether a module routes tokens.
            model: Name of the model.
        """
        return cls((name for name, part in module.named_modules() if routes(part)), model)

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str) -> int:
        """Return a layer's number, from 0.

        Raises:
            UsageError: The model has no such layer.
        """
        try:
            return self._numbers[name]
        except KeyError:
            raise UsageError(f"{name} routes no tokens in the {self.model} model") from None

    def buffer(
        self, *, top_k: int, experts: int, max_tokens: int, device: torch.device | str = "cpu"
    ) -> CaptureBuffer:
        """Create a buffer for exactly these layers.

        Args:
            top_k: Experts of each token.
            experts: Number of experts.
            max_tokens: Most tokens of a step.
            device: The device of the buffer.
        """
        return CaptureBuffer(RoutingShape(len(self), top_k, experts), max_tokens, device)
