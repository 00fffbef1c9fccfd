"""``ncclscope doctor``."""

from __future__ import annotations

import argparse
import json
import sys

__all__ = ["DoctorCommand"]

_EPILOG = """\
exit status: 0 where a job can be traced or looked at, whatever else is missing; 2 where neither
             is possible
"""


class DoctorCommand:
    """Show what this machine and this installation allow, and what would enable the rest."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.epilog = _EPILOG
        parser.add_argument("--json", action="store_true", help="one JSON document on stdout")

    def run(self, arguments: argparse.Namespace) -> int:
        """Checks and prints."""
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
