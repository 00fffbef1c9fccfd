"""Each collective of a communicator, between two real processes.

The file is a test and, started as a program, one of the two ranks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ncclscope
from ncclscope.model import State
from tests.support import fork_server

SIZES = (2, 3)


def test_collectives_are_right_and_recorded_once(tmp_path: Path) -> None:
    ranks = [
        fork_server.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                "PYTHONPATH": str(Path(ncclscope.__file__).parents[1]),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]
    for process in ranks:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output.decode()

    run = ncclscope.open_run(tmp_path / "rings")
    (key,) = run.communicators
    comm = run.communicators[key]
    assert (comm.label, comm.ranks, comm.backend) == ("tp:0", (0, 1), "gloo")
    logs = [rank.logs[key] for rank in run.ranks]
    assert [log.calls for log in logs] == [8, 8]
    assert list(logs[0].signatures(1, 9)) == list(logs[1].signatures(1, 9))

    first, second = (log.span(1, 9) for log in logs)
    assert [call.op for call in first] == [
        "all_reduce",
        "all_reduce",
        "all_gather",
        "all_gatherv",
        "reduce_scatter",
        "reduce_scatterv",
        "broadcast",
        "barrier",
    ]
    assert [call.redop for call in first[:2]] == ["sum", "max"]
    assert [call.shape for call in (first[3], second[3])] == [(2, 4), (3, 4)]
    assert first[3].sizes == second[5].sizes == SIZES
    assert first[3].out_shape == (5, 4)
    assert [call.out_shape for call in (first[5], second[5])] == [(2, 4), (3, 4)]
    assert (first[6].root, first[6].dtype) == (1, "int64")
    assert {call.state for call in (*first, *second)} == {State.COMPLETED}
    name = Path(__file__).name
    assert {(call.site or "").split(":")[0] for call in (*first, *second)} == {name}


def be_rank(rank: int, directory: Path) -> None:
    import torch
    import torch.distributed as dist

    from ncclscope.lab.communicator import LabCommunicator
    from ncclscope.lab.progress import ProgressBoard
    from ncclscope.lab.stream import HostStream

    rendezvous = (directory / "rendezvous").as_uri()
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    tracer = ncclscope.Tracer(directory / "rings", rank=rank, world_size=2)
    progress = ProgressBoard.create(directory / f"board-{rank}", 1).entry(0)
    stream = HostStream(tracer, progress)

    def communicator(ranks: list[int]) -> LabCommunicator:
        group = dist.group.WORLD if len(ranks) > 1 else None
        about = {"label": "tp:0", "ranks": ranks, "rank": rank, "nonce": "n", "backend": "gloo"}
        return LabCommunicator(tracer, stream, progress, group, **about)  # type: ignore[arg-type]

    comm = communicator([0, 1])
    mine = float(rank + 1)
    summed = comm.all_reduce(torch.full((3,), mine))
    largest = comm.all_reduce(torch.full((3,), mine), "max")
    gathered = comm.all_gather(torch.full((2, 4), mine))
    ragged = comm.all_gatherv(torch.full((SIZES[rank], 4), mine), SIZES)
    rows = torch.arange(5.0).reshape(5, 1).expand(5, 4).contiguous()
    shared = comm.reduce_scatter(rows[:4])
    own = comm.reduce_scatterv(rows, SIZES)
    sent = comm.broadcast(torch.full((2,), rank), 1)
    comm.barrier()

    alone = communicator([rank])
    assert alone.all_reduce(rows) is rows
    assert alone.all_gatherv(rows, [5]) is alone.reduce_scatterv(rows, [5]) is rows
    alone.barrier()

    stream.synchronize()
    assert summed.tolist() == [3, 3, 3]
    assert largest.tolist() == [2, 2, 2]
    assert gathered[:, 0].tolist() == [1, 1, 2, 2]
    assert ragged[:, 3].tolist() == [1, 1, 2, 2, 2]
    assert shared[:, 0].tolist() == ([0, 2] if rank == 0 else [4, 6])
    assert own[:, 3].tolist() == ([0, 2] if rank == 0 else [4, 6, 8])
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert sent.tolist() == [1, 1]
    tracer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    be_rank(int(sys.argv[1]), Path(sys.argv[2]))
