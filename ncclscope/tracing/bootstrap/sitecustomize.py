"""Run at the start of every Python under ``ncclscope run``, which puts this folder on its path.

It only installs import hooks, which apply the patches when torch is imported. A failure here must
not affect the program, so errors are ignored silently. The ``sitecustomize`` that this one
shadows is run as usual.
"""

import os
import sys


def _arrange() -> None:
    environment = os.environ
    if not (environment.get("NCCLSCOPE_DIR") or environment.get("NCCL_SCOPE_DIR")):
        return
    if environment.get("NCCLSCOPE") == "0" or sys.version_info < (3, 10):
        return
    from importlib.machinery import PathFinder

    if PathFinder.find_spec("ncclscope_patches") is None:
        sys.meta_path.append(_OwnPackages())
    # By name, as ``install_patches`` does; to import that would load more into every process.
    from importlib import import_module

    import_module("ncclscope_patches.registry").install_all()


class _OwnPackages:
    """Finds ncclscope next to this file for an interpreter that does not have it installed.

    Adding the folder to sys.path instead would expose everything else installed there.
    """

    names = ("ncclscope", "ncclscope_patches")

    def __init__(self) -> None:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        root = os.path.dirname(package)
        self.folders = [root, os.path.join(root, "patches")]

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        """Return the spec of the two packages; their modules are found through them."""
        if fullname not in self.names:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(fullname, self.folders, target)


def _run_hidden() -> None:
    """Run the next ``sitecustomize`` on the path, under that name."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _arrange()
except Exception:
    pass
_run_hidden()
