"""Patches of other packages: probes that record their collectives.

Each patch is one class that names its target module and the versions that it supports; see
:mod:`ncclscope_patches.probes.probe`. They are found through the entry point group
``ncclscope.patches``, like those of other distributions.
"""
