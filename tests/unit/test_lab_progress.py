from __future__ import annotations

from pathlib import Path

from ncclscope.lab.progress import Phase, Progress, ProgressBoard, RankProgress


def test_a_fresh_board_is_at_the_start(tmp_path: Path) -> None:
    board = ProgressBoard.create(tmp_path / "board", 3)
    assert board.read() == (RankProgress(Phase.STARTING, 0, 0, 0, 0),) * 3
    board.close()


def test_what_one_process_writes_another_one_reads(tmp_path: Path) -> None:
    ours = ProgressBoard.create(tmp_path / "board", 2)
    theirs = ProgressBoard(tmp_path / "board")
    entry = theirs.entry(1)
    entry.enter(Phase.RUNNING)
    entry.begin(4)
    entry.post()
    entry.post()
    entry.complete()
    assert ours.read()[0] == RankProgress(Phase.STARTING, 0, 0, 0, 0)
    assert ours.read()[1] == RankProgress(Phase.RUNNING, 4, 2, 1, 0)
    ours.close()


def test_the_first_wrong_step_is_kept(tmp_path: Path) -> None:
    board = ProgressBoard.create(tmp_path / "board", 1)
    entry = board.entry(0)
    entry.note_wrong(5)
    entry.note_wrong(6)
    assert board.read()[0].wrong_since == 5


def test_progress_sums_up_the_ranks() -> None:
    progress = Progress(
        1.5,
        (
            RankProgress(Phase.RUNNING, 4, 100, 90, 0),
            RankProgress(Phase.FINISHED, 5, 120, 120, 0),
            RankProgress(Phase.STARTING, 0, 0, 0, 0),
        ),
    )
    assert progress.step == 5
    assert progress.calls == 220
    assert progress.ready == 2
