"""``ncclscope doctor``."""

from __future__ import annotations

import argparse
import json
import sys

__all__ = ["DoctorCommand"]

_EPILOG = """\
exit status: 0 jobs can be traced or attached to, whatever else is missing; 2 neither is possible
"""


class DoctorCommand:
    """Check what this machine and installation support, and say how to enable the rest."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.epilog = _EPILOG
        parser.add_argument(
            "--json", action="store_true", help="Print the checks as one JSON document on stdout"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Run all checks and print their results."""
        from ncclscope.doctor.checks import check_all, is_useful
        from ncclscope.render.console.doctor import render_checks
        from ncclscope.render.console.terminal import stdout_console

        checks = check_all()
        if arguments.json:
            document = {
                "schema": 1,
                "usable": is_useful(checks),
                "checks": [check.to_dict() for check in checks],
            }
            json.dump(document, sys.stdout)
            sys.stdout.write("\n")
        else:
            stdout_console().print(render_checks(checks))
        return 0 if is_useful(checks) else 2
