"""A small inference engine of real processes that hangs on demand.

Data-parallel replicas of tensor-parallel ranks run the collectives of a mixture-of-experts model,
and one rank diverges at one step. Nothing is simulated: each rank is a process, each collective
goes through gloo or NCCL, and the ranks leave rings behind.

:mod:`~ncclscope.lab.plan` describes a run, :mod:`~ncclscope.lab.launcher` starts it for a command,
and :mod:`~ncclscope.lab.faults` holds the faults. Only modules that run in the rank processes
import torch.
"""
