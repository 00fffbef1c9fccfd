"""Trace a process from its start."""

__all__ = ["install_patches"]

PATCHES = "ncclscope_patches.registry"


def install_patches() -> None:
    """Install the import hooks that apply each patch when its target is imported.

    The patches are imported by name, since tracing must not depend on them.
    """
    from importlib import import_module

    import_module(PATCHES).install_all()
