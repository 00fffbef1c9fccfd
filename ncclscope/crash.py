"""Report a crash of ncclscope's command line."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback

EXIT_STATUS = 70
"""EX_SOFTWARE of sysexits.h. Status 1 would say that the ranks differ."""


def report_crash(error: BaseException, version: str) -> str:
    """Write a traceback to a file, and return one line that names the file.

    Args:
        error: The unexpected exception.
        version: Version of ncclscope.

    Returns:
        The line for the user; if no file can be written, it says so.
    """
    name = type(error).__name__
    found = traceback.extract_tb(error.__traceback__)
    at = f" at {os.path.basename(found[-1].filename)}:{found[-1].lineno}" if found else ""
    # Messages of other packages may contain anything, so they go only into the file.
    summary = f"internal error ({name}{at})"
    # The command line is left out: it may hold private data.
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
        return f"{summary}; its report could not be written: {failure.strerror}"
    return f"{summary}; its report is {path}"
