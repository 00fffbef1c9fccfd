"""``ncclscope mcp``."""

from __future__ import annotations

import argparse

from ncclscope.errors import UsageError

_EPILOG = """\
For agents and editors that speak the Model Context Protocol. Give them this command:

  {"mcpServers": {"ncclscope": {"command": "ncclscope", "args": ["mcp"]}}}

Tools: diagnose, attach, watch_once, list_rings, explain_kind, report. All but report only read.

exit status: 0 stdin has ended, 2 a usage error, or the package mcp is not installed
"""


class McpCommand:
    """Serve the Model Context Protocol on stdin and stdout, for agents."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser: it has none."""
        parser.usage = "%(prog)s"
        parser.epilog = _EPILOG

    def run(self, arguments: argparse.Namespace) -> int:
        """Serve until stdin ends, and return the exit status."""
        try:
            from ncclscope.agents.server import make_server
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "mcp":
                raise
            raise UsageError("the package mcp is missing", "pip install 'mcp>=2'") from None
        make_server().run("stdio")
        return 0
