"""What was read off living processes: the vocabulary of ``ncclscope attach``.

A :class:`Snapshot` is to :mod:`ncclscope.attach` what a :class:`~ncclscope.model.Run` is to a
ring: all that was seen, and nothing that was concluded. It goes into a bundle as it is, so
that the conclusions can be drawn again elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = [
    "Frame",
    "GpuSample",
    "ProcessSample",
    "RasAnswer",
    "RasComm",
    "RasRank",
    "Snapshot",
    "Source",
    "Stacks",
    "Thread",
    "Worker",
]


@dataclass(frozen=True)
class Frame:
    """One Python frame.

    Attributes:
        function: Name, qualified where the interpreter knows it so.
        file: Path below the package's root, such as ``torch/distributed/distributed_c10d.py``.
        line: Line number.
        counters: Local variables that count rounds, such as ``{"layer_idx": 12}``.
        path: Full path; empty where it is not known or was left out.
        installed: Whether the file belongs to an installed package or to the standard library;
            None where that is not known.
        calls: Names that the source line calls, such as ``work.wait``; of innermost frames only.
    """

    function: str
    file: str
    line: int
    counters: Mapping[str, int] = field(default_factory=dict)
    path: str = ""
    installed: bool | None = None
    calls: tuple[str, ...] = ()

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
        """The same with the file's path, as far as it is known."""
        return f"{self.path or self.file}:{self.line} {self.name}"

    @property
    def site(self) -> str:
        """Spelling of a call site: ``file.py:120 function``."""
        return f"{self.base}:{self.line} {self.name}"


@dataclass(frozen=True)
class Thread:
    """One thread of one process, at one moment.

    Attributes:
        name: As Python knows it, or as the kernel does.
        tid: The kernel's number of it; 0 when not known.
        frames: Python frames, the outermost first.
        native: C frames, the outermost first, where pystack was asked for them.
    """

    name: str
    tid: int
    frames: tuple[Frame, ...] = ()
    native: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stacks:
    """All threads of one process at one moment.

    Attributes:
        threads: What was read.
        error: Why nothing was; empty when it was.
    """

    threads: tuple[Thread, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class ProcessSample:
    """What /proc says of one process at one moment.

    Attributes:
        state: The kernel's letter: R running, S asleep, D in the kernel, T stopped, Z ended.
        cpu_seconds: CPU time of all threads.
        main_cpu_seconds: CPU time of the main thread.
        switches: How often the main thread has gone to sleep of its own accord.
        wchan: Where in the kernel the main thread waits, if that can be read.
        threads: Number of threads by their names.
        blocked: What the main thread's system call waits for: ``sleep``, ``futex``, ``lock``,
            ``socket``, ``pipe``, ``fifo``, ``file``, ``child``, ``poll``; empty for anything else.
    """

    state: str = ""
    cpu_seconds: float = 0.0
    main_cpu_seconds: float = 0.0
    switches: int = 0
    wchan: str = ""
    threads: Mapping[str, int] = field(default_factory=dict)
    blocked: str = ""


@dataclass(frozen=True)
class Worker:
    """One process of the job.

    Attributes:
        pid: Process id.
        rank: Global rank.
        rank_source: What says so: ``ring``, ``RANK``, ``title``, ``LOCAL_RANK`` or ``pid``,
            the last where nothing does and ranks were given out in the order of pids.
        world_size: Size of the job; 0 when not known.
        local_world_size: Ranks on this host; 0 when not known.
        title: What it calls itself, or its command line.
        labels: Its place in the job, such as ``{"tp": "2"}``.
        environment: Variables that matter to a job.
        rings: Rings that it writes.
        samples: /proc each time that stacks were read, at the beginning and at the end at least.
        stacks: Its threads at the beginning, some times in between, and at the end.
        host: Where it runs; empty where the capture is of one host.
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


@dataclass(frozen=True)
class RasRank:
    """One member of a communicator, as NCCL's RAS knows it.

    Attributes:
        rank: Rank in the communicator.
        host: Its host.
        pid: Its process; 0 when not known.
        counts: Calls launched, by function.
        async_error: NCCL's result code; 0 for none.
        aborted: Whether an abort was asked for.
        missing: Whether it gave no answer.
        dead: Whether RAS holds it to be dead.
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
        hash: NCCL's name for it, the same on all members.
        size: Members; 0 where an answer in text does not say.
        ranks: Members; of an answer in text only those that it has a word on.
        usual: What most members have launched, by function, where the answer says so.
    """

    hash: str
    size: int
    ranks: tuple[RasRank, ...] = ()
    usual: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RasAnswer:
    """What NCCL's RAS said.

    Attributes:
        text: The answer as it came.
        version: Of NCCL.
        comms: Communicators; from an answer in text form only those that it has a word on.
        remarks: Lines of a text answer that report an error or a difference.
        is_json: Whether the answer was in JSON, which names every rank.
        communicators: How many communicators RAS knows.
    """

    text: str
    version: str = ""
    comms: tuple[RasComm, ...] = ()
    remarks: tuple[str, ...] = ()
    is_json: bool = False
    communicators: int = 0


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment, as NVML knows it.

    Attributes:
        index: NVML's number of it.
        name: Model.
        utilisation: Percentage of time in which a kernel ran.
        memory_utilisation: Percentage of time in which memory was read or written.
        watts: Power.
        limit_watts: The most it may take; 0 when not known.
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
class Source:
    """A witness, and whether it could be heard.

    Attributes:
        name: ``rings``, ``stacks``, ``proc``, ``native``, ``ras``, ``gpu``, ``flight_recorder``.
        available: Whether it said anything.
        state: What was found, or why there is nothing.
        enable: What would make it available; empty when it is.
    """

    name: str
    available: bool
    state: str
    enable: str = ""


@dataclass(frozen=True)
class Snapshot:
    """All that was seen.

    Attributes:
        host: Where.
        time_ns: When, nanoseconds since 1970.
        gap: Seconds between the first and the last sample.
        workers: By rank.
        sources: The witnesses.
        ras: NCCL's own view, at the end.
        ras_before: The same at the beginning: counts that move are no difference.
        gpus: First and second sample.
        dead_rings: Rings of this job whose process has ended.
        notes: What a reader should know.
        versions: Of what took the capture.
        redacted: Whether paths, command lines and environments were left out.
        hosts: Where, if it was put together from the captures of several hosts.
        node: The folder of the node that it was collected from; names of hosts may be alike.
    """

    host: str
    time_ns: int
    gap: float
    workers: tuple[Worker, ...]
    sources: tuple[Source, ...] = ()
    ras: RasAnswer | None = None
    ras_before: RasAnswer | None = None
    gpus: tuple[tuple[GpuSample, ...], ...] = ()
    dead_rings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    redacted: bool = False
    hosts: tuple[str, ...] = ()
    node: str = ""

    def source(self, name: str) -> Source | None:
        """The witness of that name."""
        return next((source for source in self.sources if source.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything, in a form for JSON."""
        document = {"ncclscope_attach": 1, **asdict(self)}
        del document["node"]  # it is where the reader keeps it
        return document
