"""Brings what the nodes of a job have to one place; see :mod:`ncclscope.commands.collect`.

================== =========================================================================
module             what it knows
================== =========================================================================
archive            the compressed stream that a node sends, written and taken with care
node               what one node has: rings, dumps, stacks, witnesses
delivery           many nodes at once, each with its own end, good or bad
commands           the same command on another node, by ssh, Slurm or Kubernetes
ray_nodes          the same command on each node of a Ray cluster
urls               directories that fsspec reaches, as source and as target
================== =========================================================================

Each transport runs the same command on each node, ``ncclscope collect --local -o -``, and hands
on what it writes. There is no agent, no daemon and no format but tar and gzip.
"""
