"""Routing patterns that dispatchers get wrong: which tokens go to which experts.

    @given(routing_patterns(ranks=4, experts=8))
    def test_dispatch(run_ranks, pattern):
        run_ranks(dispatch, pattern)          # each rank: pattern.routes(rank)

Almost every batch gives every rank some tokens. Ranks diverge in the others: no token for a rank's
experts, all tokens for one expert, a single token, an empty step. The strategy draws these first
and often, with arbitrary batches between them. It needs hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclscope.errors import UsageError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True)
class RoutingPattern:
    """Routing of the tokens of one step.

    Attributes:
        name: Kind of the pattern, such as ``empty step``.
        experts: Number of experts; each rank has an equal share, in order.
        routed: By rank that holds the tokens, the expert of each; a token with several experts
            has several entries.
    """

    name: str
    experts: int
    routed: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.routed)

    @property
    def tokens(self) -> int:
        """Number of routed tokens of all ranks."""
        return sum(map(len, self.routed))

    def routes(self, rank: int) -> tuple[int, ...]:
        """Return the expert of each token that a rank holds."""
        return self.routed[rank]

    def owner(self, expert: int) -> int:
        """Return the rank that has an expert."""
        return expert * self.ranks // self.experts

    def sends(self, rank: int) -> list[int]:
        """Return the number of tokens that a rank sends to each rank, ``[ranks]``."""
        counts = [0] * self.ranks
        for expert in self.routed[rank]:
            counts[self.owner(expert)] += 1
        return counts

    def receives(self, rank: int) -> list[int]:
        """Return the number of tokens that a rank receives from each rank, ``[ranks]``."""
        return [self.sends(other)[rank] for other in range(self.ranks)]


def routing_patterns(
    *, ranks: int, experts: int | None = None, max_tokens: int = 8
) -> SearchStrategy[RoutingPattern]:
    """Return a hypothesis strategy for routing patterns.

    Args:
        ranks: Number of ranks.
        experts: Number of experts, a multiple of ``ranks`` (default: two per rank).
        max_tokens: Most tokens that one rank holds.

    Raises:
        UsageError: ``experts`` is not a multiple of ``ranks``, or hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise UsageError(
            "routing patterns need hypothesis", "install it with: pip install hypothesis"
        ) from None
    count = 2 * ranks if experts is None else experts
    if ranks < 1 or count < ranks or count % ranks or max_tokens < 1:
        raise UsageError(
            f"{count} experts cannot be shared by {ranks} ranks", "give a multiple of the ranks"
        )
    share = count // ranks

    def batches(choices: Sequence[int], *, least: int = 0) -> SearchStrategy[tuple[int, ...]]:
        """Return a strategy for the experts of one rank's tokens."""
        tokens = st.lists(st.sampled_from(choices), min_size=least, max_size=max_tokens)
        return tokens.map(tuple)

    def left_out(name: str, idle: int) -> SearchStrategy[RoutingPattern]:
        others = [expert for expert in range(count) if expert // share != idle]
        # At least one token for each of the others, so that no second rank is idle.
        covering = tuple(others[::share])
        return st.tuples(*[batches(others)] * ranks).map(
            lambda routed: RoutingPattern(name, count, (covering + routed[0], *routed[1:]))
        )

    def named(name: str) -> SearchStrategy[RoutingPattern]:
        everybody = range(count)
        if name == "empty step":
            return st.just(RoutingPattern(name, count, ((),) * ranks))
        if name == "single token":
            place = st.tuples(st.integers(0, ranks - 1), st.sampled_from(everybody))
            return place.map(
                lambda found: RoutingPattern(
                    name,
                    count,
                    tuple((found[1],) if rank == found[0] else () for rank in range(ranks)),
                )
            )
        if name == "all tokens to one expert":
            sizes = st.tuples(*[st.integers(1, max_tokens)] * ranks)
            return st.tuples(st.sampled_from(everybody), sizes).map(
                lambda found: RoutingPattern(
                    name, count, tuple((found[0],) * size for size in found[1])
                )
            )
        if name == "no token to a rank":
            return st.integers(0, ranks - 1).flatmap(lambda idle: left_out(name, idle))
        if name == "no token from a rank":
            return st.integers(0, ranks - 1).flatmap(
                lambda idle: st.tuples(
                    *(
                        st.just(()) if rank == idle else batches(everybody, least=1)
                        for rank in range(ranks)
                    )
                ).map(lambda routed: RoutingPattern(name, count, routed))
            )
        return st.tuples(*[batches(everybody)] * ranks).map(
            lambda routed: RoutingPattern(name, count, routed)
        )

    names = ["empty step", "single token", "all tokens to one expert", "any batch"]
    if ranks > 1:
        # Hypothesis starts with the first: if only one rank is idle, the verdict names it.
        names = ["no token to a rank", "no token from a rank", *names]
    return st.sampled_from(names).flatmap(named)
