"""A stand-in for DeepEP without GPUs, for tests of what records its calls.

Its classes lie in the modules of the real package, and their methods have its parameters. Tokens
are exchanged over gloo, on a backend below the process groups of torch, as the real kernels are. A
call returns only when all members have made it; different calls wait for each other forever.
"""

import torch  # noqa: F401  as the real package: first

from .buffers.elastic import ElasticBuffer
from .buffers.legacy import Buffer

__all__ = ["Buffer", "ElasticBuffer"]
