"""``python -m tests.damage``: damage the rings of ten jobs, and judge the verdict on each.

Each bit that is in use, each tail, each file, each page is damaged, one at a time. No damage may
make a verdict certain of something wrong, silent about what is missing, or name a rank for the
state of its file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.damage.damages import KINDS
from tests.damage.jobs import JOBS
from tests.damage.judgement import FAILURES, WORDS
from tests.damage.sweep import WHOLE_JOBS, Result, Sweep

MOST_LOST = 0.02
"""Share of a job's damages that may lose the right answer."""
_LOST = ("ASTRAY", "LOST")
_SHOWN = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when a verdict was moved as it must not be."""
    parser = argparse.ArgumentParser(prog="tests.damage", description=__doc__)
    parser.add_argument("--job", action="append", choices=JOBS, help="only this job")
    kinds = (*KINDS, *WHOLE_JOBS)
    parser.add_argument("--kind", action="append", choices=kinds, help="only this damage")
    parser.add_argument("--part", default="0/1", metavar="N/M", help="one of M equal parts")
    parser.add_argument("--seed", type=int, default=0, help="of damages at random (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where all counts go")
    parser.add_argument("--show", metavar="NAME", help="the verdict on one damage of --job")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="with --show: copy the rings")
    parser.add_argument(
        "--verify", type=int, default=0, metavar="N", help="diagnose each Nth damage twice"
    )
    options = parser.parse_args(arguments)
    names = options.job or list(JOBS)
    if options.show:
        return _show(names[0], options.show, options.seed, options.keep)
    part, parts = map(int, options.part.split("/"))
    began = time.monotonic()
    chosen = tuple(options.kind or kinds)
    tasks = [
        (name, chosen, (part, parts), (number, options.jobs), options.seed, options.verify)
        for name in names
        for number in range(options.jobs)
    ]
    result = Result()
    with contextlib.ExitStack() as stack:
        swept: Iterable[Result] = map(sweep, *zip(*tasks, strict=True))
        if options.jobs > 1:
            pool = stack.enter_context(ProcessPoolExecutor(options.jobs, get_context("fork")))
            swept = pool.map(sweep, *zip(*tasks, strict=True))
        for task, one in zip(tasks, swept, strict=True):
            result.merge(one)
            seconds = time.monotonic() - began
            bad = sum(count for key, count in one.counts.items() if key[2] in FAILURES)
            print(f"{task[0]}: {sum(one.counts.values())} sets, {bad} failed", file=sys.stderr)
            if options.json:
                options.json.write_text(json.dumps(_document(result, seconds), indent=1))
    print(report(result, time.monotonic() - began))
    return int(bool(failures(result)))


def sweep(
    name: str,
    kinds: Sequence[str],
    part: tuple[int, int] = (0, 1),
    process: tuple[int, int] = (0, 1),
    seed: int = 0,
    verify: int = 0,
) -> Result:
    """Sweep one job.

    Args:
        name: Of the job.
        kinds: Kinds of damage.
        part: The part of the sweep, from 0, and the number of parts.
        process: The number of a process that shares it with others, and their count.
        seed: Of damages at random.
        verify: Ask again about each such damage, without memory; 0 for none.
    """
    result = Result()
    with Sweep(JOBS[name]) as job:
        if job.base.status not in job.job.truth.status:
            raise SystemExit(f"{name}, undamaged: {job.base.summary}")
        for damage in job.damages([kind for kind in kinds if kind in KINDS], seed):
            if not damage.is_part(*part, name) or not damage.is_part(*process, "process"):
                continue
            word, answer = job.judge(damage)
            result.add(name, damage, word, answer, job.where(damage))
            if verify and damage.is_part(0, verify):
                again, _ = job.judge(damage, memoised=False)
                if again != word:
                    raise SystemExit(f"{name} {damage.name}: {word} from memory, {again} anew")
        if (part[0], process[0]) == (0, 0):
            for kind in WHOLE_JOBS:
                for damage, word, answer in job.recorded_anew(kind) if kind in kinds else ():
                    result.add(name, damage, word, answer)
        result.asked = job.asked
    return result


def failures(result: Result) -> list[str]:
    """Return what must not be, one line each."""
    found = []
    for (job, kind, word), count in sorted(result.counts.items()):
        if word in FAILURES:
            found.append(f"{job} {kind}: {count} {word}")
    for job in {key[0] for key in result.counts}:
        all_sets = sum(count for key, count in result.counts.items() if key[0] == job)
        lost = sum(result.counts[key] for key in result.counts if key[0] == job and key[2] in _LOST)
        if lost > MOST_LOST * all_sets:
            found.append(f"{job}: {lost} of {all_sets} lost")
    return found


def report(result: Result, seconds: float) -> str:
    """Return a table of all counts, and examples of what must not be."""
    seen = [word for word in WORDS if any(key[2] == word for key in result.counts)]
    lines = [f"{'job':<12}{'damage':<14}" + "".join(f"{word:>14}" for word in seen)]
    rows = sorted({key[:2] for key in result.counts}, key=lambda key: list(JOBS).index(key[0]))
    for job, kind in rows:
        cells = [result.counts.get((job, kind, word), 0) or "" for word in seen]
        lines.append(f"{job:<12}{kind:<14}" + "".join(f"{cell:>14}" for cell in cells))
    totals = [sum(n for key, n in result.counts.items() if key[2] == word) for word in seen]
    lines.append(f"{'all':<26}" + "".join(f"{total:>14}" for total in totals))
    for word in seen:
        if word in ("SAME", "LOWER"):
            continue
        lines.append(f"\n{word}: {WORDS[word]}")
        for (job, kind, found), names in sorted(result.found.items()):
            if found == word:
                lines.append(f"  {job} {kind}: {len(names)}")
                for name, says in names[:_SHOWN]:
                    lines.append(f"    python -m tests.damage --job {job} --show {name}")
                    lines.append(f"      {says}")
    sets = sum(result.counts.values())
    lines.append(
        f"\n{sets} sets, {result.asked} different, in {seconds:.0f} s; "
        f"{len(failures(result))} failures"
    )
    return "\n".join(lines)


def _document(result: Result, seconds: float) -> dict[str, object]:
    return {
        "seconds": round(seconds, 1),
        "asked": result.asked,
        "counts": [[*key, count] for key, count in sorted(result.counts.items())],
        "found": [[*key, names] for key, names in sorted(result.found.items())],
    }


def _show(name: str, wanted: str, seed: int, keep: Path | None) -> int:
    """Print the verdict on one damage, and keep the damaged rings."""
    kind = wanted.partition("/")[0]
    with Sweep(JOBS[name]) as job:
        for damage in job.damages([kind], seed):
            if damage.name != wanted:
                continue
            word, answer = job.judge(damage, memoised=False)
            print(f"undamaged: {job.base.status}: {', '.join(map(str, job.base.named))}")
            print(f"{word}: {answer.status}: {', '.join(map(str, answer.named))}")
            print(answer.summary)
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                with job.damaged(damage):
                    for path in job.directory.iterdir():
                        (keep / path.name).write_bytes(path.read_bytes())
            return int(word in FAILURES)
    print(f"no damage {wanted} to {name}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
