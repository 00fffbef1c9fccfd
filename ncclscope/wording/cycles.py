"""Sentences about ranks that wait for each other in a cycle."""

from __future__ import annotations

from ncclscope.wording.phrase import Phrase


class Cycle(Phrase):
    """Who waits for whom, and in which order ranks posted two calls."""

    OPEN = (
        "{ranks:^} wait for each other in a cycle: some entered {here.comm} first, some "
        "{there.comm}; the records do not show which order diverged."
    )
    OPEN_POSTED = (
        "{ranks:^} wait for each other in a cycle: some posted to {here.comm} first, some "
        "{there.comm}; the records do not show which order diverged."
    )
    POSTED = (
        "{who:^} posted call {here.call.seq}, {here.call} on {here.comm} before call "
        "{there.call.seq}, {there.call} on {there.comm}, its peers in the opposite order: "
        "{stream}neither completes, since each waits for the other."
    )
    ONE_STREAM = "on one stream "
    ENTERED = (
        "{who:^} entered {here.comm} before {there.comm}, its peers in the opposite order: it "
        "waits in call {here.call.seq}, {here.call}, and {waiting} in call {there.call.seq}, "
        "{there.call}, each for the other."
    )
    NEVER_JOINED = (
        "{who:^} never joined call {there.call.seq} on {there.comm}, {there.call}, in which "
        "{waiting} {waiting:wait}, but {own:wait} in call {here.call.seq} on {here.comm}, "
        "{here.call}: {either}, or would have posted it later."
    )
    ONE_SKIPPED = "it skipped that call"
    SIDE_SKIPPED = "one side skipped the other's call"
    LONG = (
        "{cycle:^} wait for each other in a cycle, each in a call that the next has not posted: "
        "{waiting} in call {there.call.seq} on {there.comm}, {there.call}, {own} in call "
        "{here.call.seq} on {here.comm}, {here.call}, and so on. Some skipped a call, or posted "
        "two in another order."
    )
    WAITS = (
        "rank {one.rank} is in #{one.call.seq} on {one.comm}, {one.call}{site}, and waits for rank "
        "{awaited}"
    )
    ORDERS = "the order of the two calls is the same on {}, and the opposite on {}"
    MEMBERS = (
        "rank {} gave another list of ranks on the same line: {} of {} members create the group of "
        "{}"
    )
    IN_ORDER = (
        "rank {one.rank} posted #{one.call.seq} on {one.comm}{site}, and after it #{then.seq} on "
        "{comm}{then_site}"
    )
    UNUSUAL = "rank {} went to {} before {}, and each time until then it was the other way round"
    NEW_ORDER = (
        "the order differs, although such calls are new there: a rank that mixes up two "
        "communicators, for example because it created them in another order, looks the same"
    )
    NEW_CALLS = (
        "which of the two it is, as such calls are new there: a rank that mixes up two "
        "communicators, for example because it created them in another order, looks the same"
    )
    ON_ONE_STREAM = (
        "calls run in the order in which a rank posted them, as on one stream, and have not "
        "completed: the backend does not report completion"
    )
