"""Which tokens go to which experts: the patterns that dispatchers get wrong.

    @given(routing_patterns(ranks=4, experts=8))
    def test_dispatch(run_ranks, pattern):
        run_ranks(dispatch, pattern)          # each rank: pattern.routes(rank)

Almost every batch gives every rank something to do. What makes ranks part is the one that does
not: no token for a rank's experts, all tokens for one expert, a single token, an empty step.
These come first and often, arbitrary batches between them. Needs hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ncclscope.errors import UsageError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["RoutingPattern", "routing_patterns"]


@dataclass(frozen=True)
class RoutingPattern:
    """Where the tokens of one step go.

    Attributes:
        name: What is special about it, such as ``empty step``.
        experts: How many there are; each rank has the same number of them, in order.
        routed: By rank that holds them, the expert of each token; of several experts a token
            there are several entries.
    """

    name: str
    experts: int
    routed: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.routed)

    @property
    def tokens(self) -> int:
        """Tokens of all ranks."""
        return sum(map(len, self.routed))

    def routes(self, rank: int) -> tuple[int, ...]:
        """Returns the expert of each token that a rank holds."""
        return self.routed[rank]

    def owner(self, expert: int) -> int:
        """Returns the rank that has an expert."""
        return expert * self.ranks // self.experts

    def sends(self, rank: int) -> list[int]:
        """Returns how many of its tokens a rank sends to each."""
        counts = [0] * self.ranks
        for expert in self.routed[rank]:
            counts[self.owner(expert)] += 1
        return counts

    def receives(self, rank: int) -> list[int]:
        """Returns how many tokens a rank gets from each."""
        return [self.sends(other)[rank] for other in range(self.ranks)]


def routing_patterns(
    *, ranks: int, experts: int | None = None, max_tokens: int = 8
) -> SearchStrategy[RoutingPattern]:
    """Returns a hypothesis strategy for routing patterns.

    Args:
        ranks: How many.
        experts: How many, a multiple of the ranks; two for each rank when absent.
        max_tokens: Most tokens that one rank holds.

    Raises:
        UsageError: The numbers do not go together, or hypothesis is not installed.
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
        """Returns what one rank may hold: at most so many tokens, each with its expert."""
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
        # Hypothesis begins with the first: where only one rank is idle, it is the odd one.
        names = ["no token to a rank", "no token from a rank", *names]
    return st.sampled_from(names).flatmap(named)
