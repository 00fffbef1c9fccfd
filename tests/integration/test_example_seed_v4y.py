"""examples/seed_v4y: the table of seed 003, and what may be concluded from it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ncclscope import diagnose, open_run

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "seed_v4y"

# pid -> TP rank, calls on DP, calls on TP, last operation and shape on TP. As the seed has it.
SEED = {
    2529070: (2, 8878, 1122, "all_reduce", [10733, 2]),
    2529071: (1, 8877, 1123, "all_reduce", [10733, 3072]),
    2529072: (3, 8877, 1123, "all_reduce", [10733, 3072]),
    2529073: (0, 8877, 1123, "all_reduce", [10733, 3072]),
    3408431: (2, 9593, 407, "all_gatherv", [14, 256]),
    3408430: (3, 9610, 390, "all_reduce", [15, 2]),
    3408432: (0, 9610, 390, "all_reduce", [15, 2]),
    3408433: (1, 9610, 390, "all_reduce", [15, 2]),
}
COUNTS = {pid: (dp, tp) for pid, (_, dp, tp, _, _) in SEED.items()}
DIVERGING = 6


def run_example(directory: Path, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLE / "run.py"), str(directory), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def diagnose_by_command(path: Path, status: int) -> Any:
    command = [sys.executable, "-m", "ncclscope", "diagnose", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, "")
    return json.loads(done.stdout)


def counts(document: Any) -> dict[int, tuple[int, int]]:
    return {
        row["pid"]: (row["comms"]["dp:0"]["calls"], row["comms"]["tp:0"]["calls"])
        for row in document["table"]
    }


def true_counts() -> dict[int, tuple[int, int]]:
    """Count the calls from the schedule, by vLLM's rules, without the program or the tracer."""
    code = "import json, schedule; print(json.dumps(schedule.batches()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLE, capture_output=True, text=True, check=True
    )
    *finished, _ = json.loads(done.stdout)
    expected = {}
    for pid in SEED:
        node = 0 if pid < 3_000_000 else 1
        dp = 62 * 3 * len(finished)
        tp = sum(62 for batch in finished if batch[node] % 2)
        tp += sum(1 + 62 * 2 for batch in finished if batch[node] * 3072 * 2 >= 8 << 20)
        # The unfinished step: 21 layers and the attention of the next, or 18 layers.
        expected[pid] = (dp + 21 * 3, tp + 1 + 21 * 3 + 2) if node == 0 else (dp + 18 * 3, tp + 18)
    dp, tp = expected[2529070]
    expected[2529070] = (dp, tp - 1)
    dp, tp = expected[3408431]
    expected[3408431] = (dp - 17, tp + 17)
    return expected


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("diverged")
    return directory, run_example(directory)


@pytest.fixture(scope="module")
def documents(diverged: tuple[Path, str]) -> dict[str, Any]:
    return {kept: diagnose_by_command(diverged[0] / kept, 1) for kept in ("windows", "rings")}


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("late")
    return directory, run_example(directory, "--story", "late")


def test_the_windows_read_as_the_seed(documents: dict[str, Any]) -> None:
    document = documents["windows"]

    table = {
        row["pid"]: (
            int(row["labels"]["tp"]),
            row["comms"]["dp:0"]["calls"],
            row["comms"]["tp:0"]["calls"],
            row["comms"]["tp:0"]["last_op"],
            row["comms"]["tp:0"]["last_shape"],
        )
        for row in document["table"]
    }
    assert table == SEED
    assert {row["pid"]: row["host"] for row in document["table"]} == {
        pid: "node-1" if pid < 3_000_000 else "node-15" for pid in SEED
    }
    redops = {row["pid"]: row["comms"]["tp:0"]["last_redop"] for row in document["table"]}
    assert redops == {pid: None if pid == 3408431 else "sum" for pid in SEED}
    deltas = {
        row["pid"]: (row["comms"]["dp:0"]["delta"], row["comms"]["tp:0"]["delta"])
        for row in document["table"]
    }
    assert deltas == dict.fromkeys(SEED, (0, 0)) | {2529070: (1, -1), 3408431: (-17, 17)}
    assert all(row["window"] for row in document["table"])
    assert all(sum(row) == 10_000 for row in counts(document).values())


@pytest.mark.parametrize("kept", ["windows", "rings"])
def test_the_diverging_rank_is_named(documents: dict[str, Any], kept: str) -> None:
    document = documents[kept]

    assert document["status"] == "diverged"
    verdict = document["verdict"]
    assert verdict["diverging_ranks"] == [DIVERGING]
    assert [row["pid"] for row in document["table"] if row["rank"] == DIVERGING] == [3408431]
    assert verdict["comm"]["ranks"] == [4, 5, 6, 7]
    assert (verdict["odd"]["op"], verdict["odd"]["shape"]) == ("all_gatherv", [14, 256])
    assert (verdict["peers"]["op"], verdict["peers"]["shape"]) == ("all_reduce", [15, 2])
    # Nobody else is held to be a cause, least of all pid 2529070, which is merely late.
    causes = [finding for finding in document["findings"] if finding["role"] == "cause"]
    assert {tuple(cause["diverging_ranks"]) for cause in causes} == {(DIVERGING,)}


def test_whole_rings_have_the_true_counts(documents: dict[str, Any]) -> None:
    document = documents["rings"]

    assert counts(document) == true_counts()
    assert counts(document) != COUNTS
    assert not any(row["window"] or row["lost"] for row in document["table"])


def test_the_screens_say_what_is_a_window(diverged: tuple[Path, str]) -> None:
    directory, printed = diverged
    windows, rings = printed.split(f"$ ncclscope diagnose {directory / 'rings'}")
    assert "every row adds up to 10,000" in " ".join(windows.split())
    assert "every row adds up" not in " ".join(rings.split())
    for pid, (dp, tp) in true_counts().items():
        row = next(line for line in rings.splitlines()[-30:] if str(pid) in line)
        cells = [cell.strip() for cell in row.split("│")]
        assert cells[4:8] == [str(COUNTS[pid][0]), str(dp), str(COUNTS[pid][1]), str(tp)]


def test_neither_file_order_nor_a_header_is_needed(
    diverged: tuple[Path, str], documents: dict[str, Any], tmp_path: Path
) -> None:
    files = []
    for path in sorted((diverged[0] / "windows").iterdir()):
        head, calls = path.read_text().split("\n", 1)
        header = json.loads(head)
        del header["window"]  # the patch behind the seed wrote no such thing
        files.append(tmp_path / path.name)
        files[-1].write_text(f"{json.dumps(header)}\n{calls}")
    random.Random(5).shuffle(files)
    verdict = diagnose(open_run(*files))

    assert all(rank.window for rank in verdict.run.ranks)
    stamped = {"time_ns", "version"}  # of the command, which printed it
    wanted = {name: value for name, value in documents["windows"].items() if name not in stamped}
    assert json.loads(json.dumps(verdict.to_dict())) == wanted


def test_the_same_counts_without_a_divergence_are_ok(late: tuple[Path, str]) -> None:
    windows = diagnose_by_command(late[0] / "windows", 0)
    rings = diagnose_by_command(late[0] / "rings", 0)

    assert counts(windows) == COUNTS
    assert counts(rings) != true_counts()
    for document in (windows, rings):
        assert (document["status"], document["verdict"]) == ("ok", None)
