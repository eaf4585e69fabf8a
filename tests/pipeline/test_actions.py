"""Cursors ask no more than they have to, and read all that counts."""

from dpstream.pipeline.actions import (
    Action,
    Append,
    EndOffsets,
    Ends,
    Flush,
    LogCursor,
    LogRecord,
    LogSlice,
    ReadRange,
    Steps,
    carry_out,
    catch_up,
)
from dpstream.topics.names import Role

MANIFESTS, PARTIALS = (Role.MANIFESTS, 0), (Role.PARTIALS, 0)


class Topics:
    """Partitions that end at some offsets; `written` is what a flush replies. Notes all actions."""

    def __init__(self, ends: Ends, written: Ends | None = None) -> None:
        self.ends, self.written = ends, written
        self.asked: list[Action] = []

    def run(self, steps: Steps[None]) -> None:
        carry_out(steps, self._reply)

    def _reply(self, action: Action) -> object:
        self.asked.append(action)
        match action:
            case EndOffsets(places):
                return {place: self.ends[place] for place in places}
            case Flush():
                return self.written
            case ReadRange(_, _, start, stop):
                return LogSlice(tuple(LogRecord(each, b"") for each in range(start, stop)), stop)
        return None


def cursor(place: tuple[Role, int], seen: list[int]) -> LogCursor:
    return LogCursor(place[0], 0, lambda record: seen.append(record.offset), place[1])


def test_ends_of_several_partitions_are_asked_for_at_once() -> None:
    topics, manifests, partials = Topics({MANIFESTS: 2, PARTIALS: 1}), list[int](), list[int]()
    topics.run(catch_up([cursor(MANIFESTS, manifests), cursor(PARTIALS, partials)]))
    assert (manifests, partials) == ([0, 1], [0])
    assert topics.asked == [
        EndOffsets((MANIFESTS, PARTIALS)),
        ReadRange(*MANIFESTS, 0, 2),
        ReadRange(*PARTIALS, 0, 1),
    ]


def written(topics: Topics, seen: list[int]) -> None:
    def steps() -> Steps[None]:
        log = cursor(MANIFESTS, seen)
        yield Append(*MANIFESTS, b"")
        yield from log.flush()

    topics.run(steps())


def test_what_lies_before_what_was_written_is_read_without_a_question() -> None:
    topics, seen = Topics({MANIFESTS: 9}, {MANIFESTS: 3, PARTIALS: 8}), list[int]()
    written(topics, seen)
    assert seen == [0, 1, 2]
    assert topics.asked == [Append(*MANIFESTS, b""), Flush(), ReadRange(*MANIFESTS, 0, 3)]


def test_where_it_is_not_known_how_far_that_is_the_broker_is_asked() -> None:
    for unknown in (None, {PARTIALS: 8}):
        topics, seen = Topics({MANIFESTS: 2}, unknown), list[int]()
        written(topics, seen)
        assert seen == [0, 1]
        assert EndOffsets((MANIFESTS,)) in topics.asked
