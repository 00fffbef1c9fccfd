"""The progress of calls on devices, the load of GPUs, and NCCL's counts."""

from __future__ import annotations

from ncclscope.wording.phrase import Phrase


class Progress(Phrase):
    """Where ranks are on their devices."""

    UNKNOWN = "the progress of {} on {} is unknown {}"
    FINISHED = "on {}, {} of {} calls on {} have finished"
    LAST = ", the last about {:.0f} s before the last heartbeat"
    INSIDE = "{}; {}, has been entered but not finished"
    BEFORE = "{}; {}, has not been entered: earlier work blocks the stream"
    NOT_ENQUEUED = "{}; {}, is not known to have been enqueued"
    NEXT = "{}; the next is {}"
    MORE = "other devices are at {} more positions there"
    NOT_COUNTED = "{}: progress on the device is {}"
    ALL = "all finished"
    ROW_BEFORE = "before {}, not entered"
    ROW_POSTED = "{}, being posted"
    ROW_AROUND = "in or before {}"
    DEVICE = "the device of {}"


class Load(Phrase):
    """What GPUs and NCCL's counts show."""

    SPINS = "{}: kernels run and touch no memory ({}), as in a collective that waits"
    IDLE = "{}: idle ({})"
    AT_WORK = "{}: at work ({})"
    NO_RANKS = "{} of {} spin ({}), {} idle ({}); the ranks of these GPUs are not known"
    DEAD = "{} {:are} reported dead on communicator {}"
    NO_ANSWER = "{} {:do} not answer on communicator {}"
    ERROR = "{} {:report} an error or an abort on {}"
    LAUNCHED = "{} launched {} {} on {}"
    THE_OTHERS = "{} (the others {})"
    NO_PROBLEM = "NCCL {}: no problem on {}; it counts launched calls, not their order"
    COUNTS_DIFFER = "counts of {} differ on {}: {}"


class Host(Phrase):
    """What the kernel's log says."""

    KILLED = "killed pid {} for memory ({})"
    KILLED_RANKS = "The kernel killed {} for memory ({})."
    MAY_BE = "the kernel killed pid {} for memory ({}), which may be {}"
