"""``ncclscope plugin-path``."""

from __future__ import annotations

import argparse

from ncclscope import native
from ncclscope.errors import UsageError


class PluginPathCommand:
    """Print the path of NCCL's profiler plugin, for NCCL_PROFILER_PLUGIN."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser: it has none."""
        parser.usage = "%(prog)s"
        parser.epilog = "exit status: 0 the path is printed, 2 the plugin is not installed\n"

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the path and return the exit status."""
        path = native.plugin_path()
        if path is None:
            raise UsageError(
                "NCCL's profiler plugin is not part of this installation",
                "install a C compiler, then ncclscope again",
            )
        print(path)
        return 0
