"""How a process comes to be traced from its beginning."""

__all__ = ["install_patches"]

PATCHES = "ncclscope_patches.registry"


def install_patches() -> None:
    """Have the patches wait for the import of what they patch.

    They are found by name: what records calls knows nobody who posts them.
    """
    from importlib import import_module

    import_module(PATCHES).install_all()
