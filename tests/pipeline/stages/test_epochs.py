"""Sets of epochs behave as sets, however their runs join."""

from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.stages.epochs import EpochSet

epochs = st.lists(st.integers(1, 40))


@given(epochs)
def test_epochs_that_were_added_are_in_the_set_once(added: list[int]) -> None:
    reference: set[int] = set()
    tested = EpochSet()
    for epoch in added:
        assert tested.add(epoch) == (epoch not in reference)
        reference.add(epoch)
    assert [epoch for epoch in range(50) if epoch in tested] == sorted(reference)
    assert bool(tested) == bool(reference)
    assert tested.lowest == min(reference, default=0)
    assert tested.highest == max(reference, default=0)


@given(epochs, st.integers(1, 45), st.integers(1, 45))
def test_missing_epochs_are_those_never_added(added: list[int], first: int, last: int) -> None:
    tested = EpochSet()
    for epoch in added:
        tested.add(epoch)
    absent = [epoch for epoch in range(first, last + 1) if epoch not in added]
    assert list(tested.missing(first, last)) == absent
    assert tested.first_missing(first) == next(e for e in range(first, 100) if e not in added)


@given(epochs, st.integers(1, 45))
def test_epochs_below_are_those_before_latest_first(added: list[int], epoch: int) -> None:
    tested = EpochSet()
    for each in added:
        tested.add(each)
    assert list(tested.below(epoch)) == sorted({each for each in added if each < epoch})[::-1]


def test_the_set_stays_small_over_a_million_epochs() -> None:
    tested = EpochSet()
    for epoch in range(1, 1_000_001):
        tested.add(epoch ^ 1 if epoch < 1_000_000 else epoch)
    assert len(tested._starts) <= 2
