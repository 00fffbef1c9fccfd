"""Collect the evidence of a job's nodes in one place; see :mod:`ncclscope.commands.collect`.

================== =========================================================================
module             contents
================== =========================================================================
archive            the compressed stream that a node sends: packing and safe unpacking
node               the evidence of one node: rings, dumps, stacks, RAS
delivery           receiving from many nodes in parallel; failures stay local to a node
programs           a node reached through a local program such as ssh
commands           the command lines for ssh, Slurm and Kubernetes
ray_nodes          nodes of a Ray cluster, reached through actors
urls               directories that fsspec reaches, as source and as target
================== =========================================================================

Each transport runs the same command on each node, ``ncclscope collect --local -o -``, and
forwards its output. There is no agent, no daemon, and no format besides tar and gzip.
"""
