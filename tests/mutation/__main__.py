"""`python -m tests.mutation`: which changes of the program the tests notice.

Each mutant is one changed line, applied to a copy of the repository. The tests run there until
the first one fails: those that name the changed module, then those of its package, the other unit
tests, and the rest. A test counts if it fails alone, too, and passes without the change. A mutant
that survives shows a line whose failure nobody would notice.

    python -m tests.mutation                  the committed mutants against `make test`
    python -m tests.mutation --suite all      against `make test-all`
    python -m tests.mutation --only skips     those whose file has this in its path
    python -m tests.mutation --choose 7       write another list, chosen with seed 7
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.mutants import Mutant, choose, load, store
from tests.support.programs import ROOT

ALL = "not vllm and not gpu and not foreign and not ray"
UNIT = ("tests/unit", "tests/routed")
ANALYSIS = (
    "tests/unit/analyzers",
    "tests/integration/test_comparison.py",
    "tests/integration/test_corpus.py",
)
NOT_COPIED = (".*", "__pycache__", "transcripts", "build", "dist")
PROGRAM = ("ncclscope", "patches", "analyzers")
NO_TESTS = 5
CLOSEST = 5


def main() -> int:
    """Run the mutants; the exit status is 1 where one survives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", choices=("fast", "all"), default="fast")
    parser.add_argument("--only", default="", help="mutants whose file has this in its path")
    parser.add_argument("--stages", type=int, default=4, help="1: tests that name the module")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument("--choose", type=int, metavar="SEED", help="write another list")
    parser.add_argument("--count", type=int, default=30, help="mutants to choose (default: 30)")
    options = parser.parse_args()
    if options.choose is not None:
        store(choose(options.choose, options.count))
        return 0
    mutants = [one for one in load() if options.only in one.file and not one.equivalent]
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(options.jobs):
            copies.put(copy(Path(folder) / str(number)))

        def judge(mutant: Mutant) -> bool:
            root = copies.get()
            began = time.monotonic()
            failed = first_failure(root, mutant, options)
            copies.put(root)
            print(
                f"{mutant.file}:{mutant.line}  {failed or 'SURVIVES'}"
                f"  ({time.monotonic() - began:.0f} s)\n"
                f"    - {mutant.text.strip()}\n    + {mutant.replacement.strip()}",
                flush=True,
            )
            return failed is not None

        with ThreadPoolExecutor(options.jobs) as pool:
            caught = sum(pool.map(judge, mutants))
    print(f"{caught} of {len(mutants)} are caught by the suite: {options.suite}")
    return int(caught < len(mutants))


def copy(root: Path) -> Path:
    """Copy the repository, without environments and results."""
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for name in (".ci", ".github"):
        shutil.copytree(ROOT / name, root / name)
    # Its hash tells a changed module, which alone is then compiled again by each process.
    compiling = (sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash")
    subprocess.run([*compiling, *PROGRAM], cwd=root, check=True)
    return root


def first_failure(root: Path, mutant: Mutant, options: argparse.Namespace) -> str | None:
    """Return the test that notices the mutant, or None."""
    if not mutant.apply(root):
        return "GONE: the line has changed; choose another"
    try:
        for files in [*stages(mutant)][: options.stages]:
            healthy: list[str] = []
            while (test := run(root, options.suite, *files, *healthy)) is not None:
                fails_alone = run(root, options.suite, test) is not None
                mutant.restore(root)
                if fails_alone and run(root, options.suite, test) is None:
                    return f"caught by {test}"
                healthy.append(f"--deselect={test}")
                mutant.apply(root)
    finally:
        mutant.restore(root)
    return None


def run(root: Path, suite: str, *arguments: str) -> str | None:
    """Run tests in a copy; return the first that fails."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
            *("--no-header", "--tb=no"),
            *(("-m", ALL) if suite == "all" else ()),
            *arguments,
        ],
        cwd=root,
        env=environment(root, suite),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode in (0, NO_TESTS):
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+?\.py\S*(?: .*?\])?)(?: - .*)?$", done.stdout, re.M)
    return found[1] if found else f"status {done.returncode}: {done.stdout[-300:]}"


def stages(mutant: Mutant) -> Iterator[Sequence[str]]:
    """Yield arguments for pytest, the likeliest tests first."""
    module = mutant.file.removeprefix("analyzers/").removeprefix("patches/").removesuffix(".py")
    dotted = module.removesuffix("/__init__").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    imported = re.compile(rf"{re.escape(dotted)}\b|from {re.escape(package)} import .*\b{name}\b")
    words = {word for word in re.split(r"[._]", dotted) if len(word) > 3} - {"ncclscope"}
    scores = {}
    for folder in UNIT:
        for path in sorted((ROOT / folder).rglob("test_*.py")):
            alike = len(words & set(re.split("_", path.stem)))
            score = 5 * bool(imported.search(path.read_text("utf-8"))) + alike
            if score:
                scores[path.relative_to(ROOT).as_posix()] = score
    closest = sorted(scores, key=lambda path: -scores[path])[:CLOSEST]
    if closest:
        yield closest
    if "analy" in mutant.file:
        yield ANALYSIS
    yield UNIT
    yield [f"--ignore={folder}" for folder in UNIT]


def environment(root: Path, suite: str) -> dict[str, str]:
    """Return variables under which the copy is imported, and not what is installed."""
    path = os.pathsep.join(str(root / part) for part in ("", "analyzers", "patches"))
    shared = os.environ.get("NCCLSCOPE_SHARED", str(ROOT.parent / "shared"))
    variables = {"PYTHONPATH": path, "NCCLSCOPE_SHARED": shared, "PYTHONDONTWRITEBYTECODE": "1"}
    return os.environ | variables | ({"NCCLSCOPE_TESTS": "all"} if suite == "all" else {})


if __name__ == "__main__":
    sys.exit(main())
