"""Note what keeps one rank busy while its peers wait: compilation, loading, a download."""

from __future__ import annotations

import sys
from typing import Any

from ncclscope.model.activities import COMPILE, LOAD
from ncclscope.tracing import callsite
from ncclscope.tracing.notes import Notes, Phase, leave
from ncclscope_patches.probes.probe import Note


class _Work(Note):
    """Notes one function of a module."""

    activity = LOAD
    text = ""
    function = ""

    def __init__(self) -> None:
        super().__init__()
        self._notes = Notes(self.activity)
        self._inside = False

    def install(self, module: Any) -> None:
        self.note(module, self.function)

    def note(self, owner: Any, name: str, alias: Any = None) -> None:
        """Note the calls of a function, if it exists.

        Args:
            owner: Its class or module.
            name: Its name.
            alias: A module that may have imported it before.
        """
        function = getattr(owner, name, None)
        if callable(function):
            noted = self.guard_scope(function, self._enter, self._leave)
            self.put(owner, name, noted)
            if getattr(alias, name, None) is function:
                self.put(alias, name, noted)

    def detail(self, args: tuple[Any, ...]) -> str:
        """Return the detail of a call."""
        line = callsite.user_line(sys._getframe(1))
        return f"{self.text} at {line}" if line else self.text

    def _enter(self, args: tuple[Any, ...], _kwargs: Any) -> Phase | None:
        if self._inside or self._notes.slot() is None:
            return None
        self._inside = True
        return self._notes.begin(self.detail(args), self.text)

    def _leave(self, phase: Phase) -> None:
        self._inside = False
        leave(phase)


class CompileNote(_Work):
    """Notes each function that torch.compile compiles."""

    name = "compile"
    target = "torch._dynamo.convert_frame"
    activity = COMPILE
    text = "torch.compile"
    function = "_compile"

    def detail(self, args: tuple[Any, ...]) -> str:
        code = args[0] if args else None
        if code is None:
            return self.text
        base = code.co_filename.rpartition("/")[2]
        return f"{self.text} of {code.co_name} ({base}:{code.co_firstlineno})"


class TorchLoadNote(_Work):
    """Notes ``torch.load``."""

    name = "torch_load"
    target = "torch.serialization"
    text = "torch.load"

    def install(self, module: Any) -> None:
        self.note(module, "load", sys.modules.get("torch"))


class DownloadNote(_Work):
    """Notes downloads of huggingface_hub; neither the address nor the file's name is recorded."""

    name = "hub_download"
    target = "huggingface_hub.file_download"
    supports = "huggingface_hub 0.30 to 1.0"
    text = "a download by huggingface_hub"

    def install(self, module: Any) -> None:
        for name in ("http_get", "xet_get"):
            self.note(module, name)


class ModelLoadNote(_Work):
    """Notes that vLLM loads a model's weights."""

    name = "vllm_model_load"
    target = "vllm.model_executor.model_loader.base_loader"
    text = "vLLM's model loader"

    def install(self, module: Any) -> None:
        self.note(module.BaseModelLoader, "load_model")
