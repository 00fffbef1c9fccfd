"""A small inference engine of real processes that hangs on demand.

Data-parallel replicas of tensor-parallel ranks run the collectives of a mixture-of-experts
model, and one rank leaves the common sequence at one step. Nothing is simulated: each rank
is a process, each collective goes through gloo or NCCL, and what is left behind are rings.

:mod:`~ncclscope.lab.plan` says what is run, :mod:`~ncclscope.lab.launcher` runs it and is
all that a command needs; :mod:`~ncclscope.lab.faults` holds what can go wrong. Only modules
that run in the rank processes import torch.
"""
