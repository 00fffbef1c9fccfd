"""Fetch single files of released vLLM wheels, which have hundreds of megabytes.

pip says where a wheel lies, and of that only what is needed is read: an index that answers
requests for parts of a file, as PyPI does, has a few kilobytes to send.

    python -m tests.environments.vllm_sources 0.26.0 vllm/version.py DIRECTORY
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

__all__ = ["Unavailable", "fetch"]

SECONDS = 60.0
BUFFER = 1 << 16


class Unavailable(Exception):
    """The index has no such wheel, cannot be reached, or sends whole files only."""


def fetch(version: str, member: str, directory: Path) -> Path:
    """Return where a file of vLLM's wheel of this version lies, as it is in the wheel.

    Args:
        version: Such as `0.26.0`.
        member: Its path in the wheel.
        directory: Where it goes, under its own path; what is there is not fetched again.

    Raises:
        Unavailable: It is not to be had.
    """
    target = directory / member
    if not target.exists():
        try:
            with zipfile.ZipFile(io.BufferedReader(_Remote(_locate(version)), BUFFER)) as wheel:
                data = wheel.read(member)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise Unavailable(f"{member} of vLLM {version} cannot be read: {error}") from error
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".draft")
        draft.write_bytes(data)
        draft.rename(target)
    return target


def _locate(version: str) -> str:
    """Return the address of the wheel, from pip and the index that it is set up for."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-"]
    command += ["--no-deps", "--ignore-installed", "--only-binary", ":all:", f"vllm=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=3 * SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable("pip takes too long to ask its index") from None
    if done.returncode != 0:
        raise Unavailable(f"pip finds no vLLM {version}: {done.stderr.strip()[-300:]}")
    address: str = json.loads(done.stdout)["install"][0]["download_info"]["url"]
    if not address.startswith("https://"):
        raise Unavailable(f"{address} is not on a server that could be asked for a part of it")
    return address


class _Remote(io.RawIOBase):
    """A file on a server, of which only what is asked for is read."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._place = 0
        self._size = int(self._request("bytes=0-0")[1].rpartition("/")[2])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        stop = min(self._place + len(buffer), self._size)
        if stop <= self._place:
            return 0
        data, _ = self._request(f"bytes={self._place}-{stop - 1}")
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def _request(self, part: str) -> tuple[bytes, str]:
        request = urllib.request.Request(self._address, headers={"Range": part})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            if answer.status != 206:
                raise Unavailable(f"{self._address} comes whole or not at all")
            return answer.read(), answer.headers["Content-Range"]


if __name__ == "__main__":
    print(fetch(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
