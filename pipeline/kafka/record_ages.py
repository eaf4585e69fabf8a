"""How old records are, where all one can ask is whether they are older than so long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import Final, TypeAlias, TypeVar

FINEST_AGE_MS: Final = 1_000
"""Ages are told no finer, in milliseconds."""

Place = TypeVar("Place")
_Search: TypeAlias = Generator[int, bool, int]


def record_ages(
    places: Collection[Place],
    oldest: int,
    older: Callable[[Mapping[Place, int]], Collection[Place]],
) -> dict[Place, int]:
    """The ages of records, in milliseconds: to within a second, or a twentieth, and too young.

    Args:
        places: one for each record.
        oldest: that any can be.
        older: from an age for some of the places, those of them whose records are older than that.
            Called as often as the record needs that needs it most often, whatever their number.
    """
    searches = {place: _search(oldest) for place in places}
    found: dict[Place, int] = {}
    asked: dict[Place, int] = {}

    def go_on(place: Place, answer: bool | None) -> None:
        search = searches[place]
        try:
            asked[place] = next(search) if answer is None else search.send(answer)
        except StopIteration as finished:
            found[place] = finished.value
            asked.pop(place, None)

    for place in searches:
        go_on(place, None)
    while asked:
        answers = older(dict(asked))
        for place in tuple(asked):
            go_on(place, place in answers)
    return found


def _search(oldest: int) -> _Search:
    """Asks whether a record is older than what it yields; returns its age."""
    least, most = 0, FINEST_AGE_MS
    while most < oldest and (yield most):
        least, most = most, 2 * most
    while most - least > max(FINEST_AGE_MS, most // 20):
        middle = (least + most) // 2
        if (yield middle):
            least = middle
        else:
            most = middle
    return least
