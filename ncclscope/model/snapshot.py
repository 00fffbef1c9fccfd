"""Process snapshots: the data that ``ncclscope attach`` reads off live processes.

A :class:`Snapshot` is to :mod:`ncclscope.attach` what a :class:`~ncclscope.model.Run` is to a
ring: all observations and no conclusions. It is written unchanged into a bundle, so that the
conclusions can be drawn again elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

NO_PERMISSION = "no permission to read its memory"
"""Error of stacks that the kernel refuses to show."""


@dataclass(frozen=True)
class Frame:
    """One Python frame.

    Attributes:
        function: Name of the function, qualified where the interpreter provides that.
        file: Path below the package's root, such as ``torch/distributed/distributed_c10d.py``.
        line: Line number.
        counters: Local variables that count iterations, such as ``{"layer_idx": 12}``.
        path: Full path; empty where it is not known or was redacted.
        installed: Whether the file belongs to an installed package or to the standard library;
            None where that is not known.
        calls: Names that the source line calls, such as ``work.wait``; for innermost frames only.
        makers: Names of functions whose results the source line waits for; likewise.
        group: Of a frame of torch.distributed: ``default`` if its arguments name no process group,
            ``given`` if they do; empty where that is not known.
        peers: Of a frame of torch.distributed: the rank in its argument ``src`` or ``dst``.
        loop: Of a frame of the user's program: the first and the last line of the outermost loop
            in the function that the line is in; empty where it is in none, or not known.
        before: Names that this loop calls in the lines above.
    """

    function: str
    file: str
    line: int
    counters: Mapping[str, int] = field(default_factory=dict)
    path: str = ""
    installed: bool | None = None
    calls: tuple[str, ...] = ()
    makers: tuple[str, ...] = ()
    group: str = ""
    peers: tuple[int, ...] = ()
    loop: tuple[int, ...] = ()
    before: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function's own name, without its class."""
        return self.function.rpartition(".")[2]

    @property
    def base(self) -> str:
        """The file's name without its folders."""
        return self.file.rpartition("/")[2]

    @property
    def full_site(self) -> str:
        """Spelling of the call site with the file's path, as far as it is known."""
        return f"{self.path or self.file}:{self.line} {self.name}"

    @property
    def site(self) -> str:
        """Spelling of a call site: ``file.py:120 function``."""
        return f"{self.base}:{self.line} {self.name}"


@dataclass(frozen=True)
class Thread:
    """One thread of one process in one sample.

    Attributes:
        name: Name of the thread in Python, or in the kernel.
        tid: The kernel's thread id; 0 when not known.
        frames: Python frames, the outermost first.
        native: C frames, the outermost first, where pystack was used to read them.
    """

    name: str
    tid: int
    frames: tuple[Frame, ...] = ()
    native: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stacks:
    """All threads of one process in one sample.

    Attributes:
        threads: The threads that were read.
        error: Why none was read; empty on success.
    """

    threads: tuple[Thread, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class ProcessSample:
    """The state of one process in /proc in one sample.

    Attributes:
        state: The kernel's letter: R running, S asleep, D in the kernel, T stopped, Z ended.
        cpu_seconds: CPU time of all threads, in seconds.
        main_cpu_seconds: CPU time of the main thread, in seconds.
        switches: Number of voluntary context switches of the main thread.
        wchan: Kernel function in which the main thread waits, if readable.
        threads: Number of threads by name.
        blocked: What the main thread's system call waits for: ``sleep``, ``futex``, ``lock``,
            ``socket``, ``pipe``, ``fifo``, ``file``, ``child``, ``poll``; empty for anything else.
        main_delayed_seconds: Time for which the main thread was ready and had no processor.
        started_cpu_seconds: CPU time of the processes below it that are no ranks, in seconds.
        io_bytes: Bytes that it has read and written by system calls on files and pipes.
        wakes_ns: When the timed sleep of its main thread ends at the latest, in nanoseconds since
            1970; 0 where it does not sleep so.
    """

    state: str = ""
    cpu_seconds: float = 0.0
    main_cpu_seconds: float = 0.0
    switches: int = 0
    wchan: str = ""
    threads: Mapping[str, int] = field(default_factory=dict)
    blocked: str = ""
    main_delayed_seconds: float = 0.0
    started_cpu_seconds: float = 0.0
    io_bytes: int = 0
    wakes_ns: int = 0


@dataclass(frozen=True)
class Worker:
    """One process of the job.

    Attributes:
        pid: Process id.
        rank: Global rank; of an engine no number.
        rank_source: Source of the rank: ``ring``, ``RANK``, ``title``, ``LOCAL_RANK`` or ``pid``;
            with ``pid``, ranks were assigned in the order of pids.
        world_size: Number of ranks in the job; 0 when not known.
        local_world_size: Number of ranks on this host; 0 when not known.
        title: Process title, or command line.
        labels: Its parallel coordinates, such as ``{"tp": "2"}``.
        environment: Environment variables that matter to a job.
        rings: Paths of the rings that it writes.
        samples: Samples of /proc, one for each sample of stacks, at least the first and the last.
        stacks: Samples of its threads, oldest first.
        host: Host name; empty where the snapshot is of one host.
        lost_peers: Connections whose other side does not answer, one line each.
        accepted: For each port that it listens on: the ranks whose connections it has accepted
            there, -1 for any other process. Ports without connections are left out.
        clients: Of a server: connections to the port on which it serves.
        locked_by: Ranks that hold the file locks for which it waits, -1 for any other process.
        other_end: Rank at the other end of the TCP connection in which its main thread waits to
            send or to receive; -1 without.
    """

    pid: int
    rank: int
    rank_source: str = "pid"
    world_size: int = 0
    local_world_size: int = 0
    title: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    rings: tuple[str, ...] = ()
    samples: tuple[ProcessSample, ...] = ()
    stacks: tuple[Stacks, ...] = ()
    host: str = ""
    lost_peers: tuple[str, ...] = ()
    accepted: tuple[tuple[int, ...], ...] = ()
    clients: int = 0
    locked_by: tuple[int, ...] = ()
    other_end: int = -1


@dataclass(frozen=True)
class RasRank:
    """One member of a communicator, as NCCL's RAS knows it.

    Attributes:
        rank: Rank in the communicator.
        host: Host name.
        pid: Process id; 0 when not known.
        counts: Number of launched calls, by function.
        async_error: NCCL's result code; 0 for none.
        aborted: Whether an abort was requested.
        missing: Whether it did not answer.
        dead: Whether RAS reports it as dead.
    """

    rank: int
    host: str = ""
    pid: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    async_error: int = 0
    aborted: bool = False
    missing: bool = False
    dead: bool = False


@dataclass(frozen=True)
class RasComm:
    """One communicator, as NCCL's RAS knows it.

    Attributes:
        hash: NCCL's hash of the communicator, the same on all members.
        size: Number of members; 0 where a text answer does not contain it.
        ranks: Members; from a text answer only those that it mentions.
        usual: Number of calls that most members launched, by function, where the answer has it.
    """

    hash: str
    size: int
    ranks: tuple[RasRank, ...] = ()
    usual: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RasAnswer:
    """An answer of NCCL's RAS.

    Attributes:
        text: The answer as received.
        version: Version of NCCL.
        comms: Communicators; from a text answer only those that it mentions.
        remarks: Lines of a text answer that report an error or a difference.
        is_json: Whether the answer was in JSON, which names every rank.
        communicators: Number of communicators that RAS knows.
    """

    text: str
    version: str = ""
    comms: tuple[RasComm, ...] = ()
    remarks: tuple[str, ...] = ()
    is_json: bool = False
    communicators: int = 0


@dataclass(frozen=True)
class GpuSample:
    """One GPU in one sample, as NVML reports it.

    Attributes:
        index: NVML's index of the GPU.
        name: Model.
        utilisation: Percentage of time in which a kernel ran.
        memory_utilisation: Percentage of time in which memory was read or written.
        watts: Power draw in watts.
        limit_watts: Power limit in watts; 0 when not known.
        pids: Processes with a context on it.
    """

    index: int
    name: str = ""
    utilisation: int = 0
    memory_utilisation: int = 0
    watts: float = 0.0
    limit_watts: float = 0.0
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class KernelEvent:
    """A message of the kernel that explains why a process ended or a GPU failed.

    Attributes:
        kind: ``oom``, a process killed for memory, or ``xid``, an error of an NVIDIA GPU.
        time_ns: Nanoseconds since 1970; 0 when not known.
        pid: Process id; 0 when not known.
        text: The process and its memory, or the error.
        host: Host name.
    """

    kind: str
    time_ns: int = 0
    pid: int = 0
    text: str = ""
    host: str = ""


@dataclass(frozen=True)
class QueueState:
    """The blocks of one of vLLM's message queues.

    Attributes:
        name: Name of the shared memory.
        readers: Number of readers.
        unread: For each block the readers that have not read it; none where it is not written.
    """

    name: str
    readers: int = 0
    unread: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Source:
    """A data source and whether it was available.

    Attributes:
        name: ``rings``, ``stacks``, ``proc``, ``native``, ``ras``, ``gpu``, ``flight_recorder``,
            ``kernel log``, ``sockets``.
        available: Whether it provided data.
        state: What was found, or why it was not available.
        enable: How to make it available; empty when it is.
    """

    name: str
    available: bool
    state: str
    enable: str = ""


@dataclass(frozen=True)
class Snapshot:
    """All observations of the live processes of a job.

    Attributes:
        host: Host name.
        time_ns: Time of the snapshot, nanoseconds since 1970.
        gap: Seconds between the first and the last sample.
        workers: The processes, ordered by rank.
        engines: The processes that send workers their requests, and are no ranks.
        servers: The processes that receive requests, or pass messages between engines.
        sources: The data sources.
        ras: NCCL RAS's answer at the end.
        ras_before: Its answer at the beginning: counts that changed in between are ignored.
        gpus: Samples of all GPUs, the first and the last.
        kernel: What the kernel logged about memory and GPUs, oldest first.
        queues: vLLM's message queues on this host.
        dead_rings: Rings of this job whose process has ended.
        notes: Remarks on the snapshot.
        versions: Versions of the software that took the snapshot.
        redacted: Whether paths, command lines and environments were removed.
        hosts: Host names, if it was merged from snapshots of several hosts.
        node: Folder of the node that it was collected from; host names may not be unique.
    """

    host: str
    time_ns: int
    gap: float
    workers: tuple[Worker, ...]
    sources: tuple[Source, ...] = ()
    ras: RasAnswer | None = None
    ras_before: RasAnswer | None = None
    gpus: tuple[tuple[GpuSample, ...], ...] = ()
    kernel: tuple[KernelEvent, ...] = ()
    queues: tuple[QueueState, ...] = ()
    dead_rings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    redacted: bool = False
    hosts: tuple[str, ...] = ()
    node: str = ""
    engines: tuple[Worker, ...] = ()
    servers: tuple[Worker, ...] = ()

    def source(self, name: str) -> Source | None:
        """Return the data source of that name."""
        return next((source for source in self.sources if source.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot in a form for JSON."""
        document = {"ncclscope_attach": 1, **asdict(self)}
        del document["node"]  # the reader sets it from the folder's name
        return document
