"""``ncclscope doctor``."""

from __future__ import annotations

import argparse

from ncclscope.commands.options import add_json_option, print_json

_EPILOG = """\
exit status: 0 jobs can be traced or attached to, whatever else is missing; 2 neither is possible
"""


class DoctorCommand:
    """Check what this machine and installation support, and say how to enable the rest."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        parser.epilog = _EPILOG
        add_json_option(parser, "checks")

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
            print_json(document)
        else:
            stdout_console().print(render_checks(checks))
        return 0 if is_useful(checks) else 2
