"""What the command line does when ncclscope itself fails."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

__all__ = ["EXIT_STATUS", "report_crash"]

EXIT_STATUS = 70
"""EX_SOFTWARE of sysexits.h. Status 1 would say that the ranks differ."""


def report_crash(error: BaseException, version: str) -> str:
    """Keep a traceback in a file and return one line that says where.

    Args:
        error: What was not foreseen.
        version: Of ncclscope.

    Returns:
        What is shown to the user. Where no file can be written it says so.
    """
    name = type(error).__name__
    found = traceback.extract_tb(error.__traceback__)
    at = f" at {os.path.basename(found[-1].filename)}:{found[-1].lineno}" if found else ""
    # Messages of foreign code may hold anything, and belong into the file alone.
    said = f"an error of its own ({name}{at})"
    # The command line is left out: it may hold what only its user should see.
    text = "".join(
        (
            f"ncclscope {version}, Python {platform.python_version()}, {platform.platform()}\n",
            f"command: {' '.join(sys.argv[1:2])}\n\n",
            *traceback.format_exception(error),
        )
    )
    try:
        descriptor, path = tempfile.mkstemp(prefix="ncclscope-error-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as failure:
        return f"{said}; its report could not be written: {failure.strerror}"
    return f"{said}; its report is {path}"
