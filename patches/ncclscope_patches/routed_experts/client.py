"""Client side: decode arrays from JSON answers. It needs numpy, but neither torch nor vLLM.

answer = requests.post(url, json={..., "vllm_xargs": {"return_routed_experts": True}}).json()
routed = decode_choice(answer["choices"][0])
replay(routed.ids, skip=routed.missing)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ncclscope.errors import InputError
from ncclscope_patches.routed_experts.encoding import MAX_BYTES, decode_array
from ncclscope_patches.routed_experts.result import RoutedExperts
from ncclscope_patches.routed_experts.serving import FIELD, INFO
from ncclscope_patches.routed_experts.shape import Mask


def decode_choice(
    choice: Mapping[str, Any], *, prompt_tokens: int = 0, max_bytes: int = MAX_BYTES
) -> RoutedExperts | None:
    """Decode the routing in one choice of an answer, or of a chunk of a stream.

    Answers of vLLM's own feature are supported, too. They do not mark missing tokens, so none is
    treated as missing.

    Args:
        choice: The choice, as parsed JSON.
        prompt_tokens: Number of tokens of the prompt, if the answer does not contain it.
        max_bytes: Size of the largest array to allocate.

    Returns:
        The routing; None if the choice has none.

    Raises:
        InputError: The routing is invalid.
    """
    text = choice.get(FIELD)
    if text is None:
        return None
    info = choice.get(INFO, {"encoding": "npy"})
    if not isinstance(text, str) or not isinstance(info, Mapping):
        raise InputError(f"{FIELD} is no text, or {INFO} is no object")
    encoding = info.get("encoding")
    if encoding not in ("npy", "compact"):
        raise InputError(f"{INFO} names an encoding that is unknown here: {encoding!r}")
    ids = decode_array(text, encoding, max_bytes=max_bytes)
    prompt = _count(info, "prompt_tokens", prompt_tokens)
    if _count(info, "tokens", len(ids)) != len(ids):
        raise InputError(f"{INFO} speaks of {info['tokens']} tokens, of {len(ids)}")
    missing = _mask(info, len(ids))
    if _count(info, "missing", int(missing.sum())) != missing.sum():
        raise InputError(f"{INFO} counts {info['missing']} missing tokens, and names others")
    return RoutedExperts(ids, missing, prompt, _count(info, "first", 0))


class StreamReader:
    """Joins the parts of a stream, for one choice.

    Args:
        max_bytes: Largest size of a chunk's array, and of all arrays together.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._parts: list[RoutedExperts] = []
        self._tokens = self._bytes = 0

    def add(self, choice: Mapping[str, Any]) -> RoutedExperts | None:
        """Decode the choice of one chunk.

        Returns:
            The part in this chunk; None if it has none.

        Raises:
            InputError: The part is invalid, or earlier tokens are missing.
        """
        part = decode_choice(choice, max_bytes=self.max_bytes)
        if part is None:
            return None
        if part.first != self._tokens:
            raise InputError(f"the stream goes on at token {part.first}, after {self._tokens}")
        known = self._parts[0] if self._parts else part
        if (part.ids.shape[1:], part.ids.dtype) != (known.ids.shape[1:], known.ids.dtype):
            raise InputError("a part of the stream is about another model")
        self._bytes += part.ids.nbytes
        if self._bytes > self.max_bytes:
            raise InputError(f"the stream is longer than {self.max_bytes} bytes")
        self._tokens += part.tokens
        self._parts.append(part)
        return part

    def result(self) -> RoutedExperts | None:
        """Return all parts so far, joined; None if there are none."""
        if not self._parts:
            return None
        return RoutedExperts(
            np.concatenate([part.ids for part in self._parts]),
            np.concatenate([part.missing for part in self._parts]),
            self._parts[0].prompt_tokens,
        )


def _count(info: Mapping[str, Any], key: str, default: int) -> int:
    value = info.get(key, default)
    if not isinstance(value, int) or value < 0:
        raise InputError(f"{key} in {INFO} is no number: {value!r}")
    return value


def _mask(info: Mapping[str, Any], tokens: int) -> Mask:
    missing = np.zeros(tokens, np.bool_)
    runs = info.get("missing_runs", [])
    if not isinstance(runs, list):
        raise InputError(f"missing_runs in {INFO} is no list")
    for run in runs:
        if (
            not isinstance(run, list)
            or len(run) != 2
            or not all(isinstance(number, int) and number >= 0 for number in run)
            or sum(run) > tokens
        ):
            raise InputError(f"missing_runs in {INFO} names tokens that are not there: {run!r}")
        missing[run[0] : sum(run)] = True
    return missing
