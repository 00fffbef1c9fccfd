"""Reaches into other people's code: probes that record their collectives.

Each patch is one class that names the module it reaches into and the versions it was
written for; see :mod:`ncclscope_patches.probes.probe`. They are found through the entry point
group ``ncclscope.patches``, like anyone else's.
"""
