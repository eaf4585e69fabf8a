"""Propose what a job asks of an input: measures and attributes, or a protocol for values.

`max_changes` fits nineteen of twenty users. It follows from the values of users without noise, as
do ranges of numbers and lists of labels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import InputError, counted
from dpstream.pipeline.jobs.measure_keys import RESERVED, AttributeKeys, Trust
from dpstream.pipeline.planning.event_statistics import (
    activity_changes,
    epoch_totals,
    fitting_changes,
    path_changes,
    usual_edges,
    usual_range,
)
from dpstream.pipeline.planning.first_epochs import Period
from dpstream.pipeline.planning.input_profile import (
    FEWEST_NUMBERS,
    InputProfile,
    LabelColumn,
    NumberColumn,
    number_in,
)
from dpstream.pipeline.values.durations import Duration

ACTIVE, EVENTS, VALUE = "active", "events", "value"
"""Answers to what is counted, other than a column of numbers."""
_RARE: Final = 0.01
_MOST_GROUPS: Final = 12
_BOOLEANS: Final = {"0", "1", "true", "false"}
_TRUE, _FALSE = {"yes", "y", "ja", "on", "t", "oui", "si"}, {"no", "n", "nein", "off", "f", "non"}
_MOST_VALUES: Final = 64


@dataclass(frozen=True, slots=True)
class FirstAnswers:
    """Answers from which a job file is written.

    Attributes:
        count: `ACTIVE`, `EVENTS`, `VALUE`, or names of columns with numbers.
        by: Columns by which to break down.
        public: Those of them that everyone may know.
        event: Names of the events that count; () for all.
        length: Length of an epoch; None for one that suits the input.
    """

    count: tuple[str, ...]
    by: tuple[str, ...] = ()
    public: frozenset[str] = frozenset()
    trust: Trust = "none"
    event: tuple[str, ...] = ()
    length: Duration | None = None

    @property
    def epsilon(self) -> int:
        return 1 if self.trust == "shuffle" else 4

    @property
    def private(self) -> bool:
        """True if any column to break down by is private."""
        return not self.public.issuperset(self.by)


def countable(profile: InputProfile) -> dict[str, str]:
    """Return what can be counted in an input, the default first, with a description of each."""
    if profile.value is not None:
        return {VALUE: f"the value that each user has, from a log of changes of {profile.value}"}
    if not profile.has_times:
        return {}
    return {
        ACTIVE: "how many users were active",
        EVENTS: "how many events a user had, on average",
        **{
            column.name: f"the sum of {column.name} of a user, on average"
            for column in profile.numbers
        },
    }


def check_answers(profile: InputProfile, answers: FirstAnswers) -> None:
    able = countable(profile)
    if not able:
        raise InputError(
            f"{profile.name}: rows have epochs, but no values. Events need times; a log of changes "
            "needs a column of values: name it with --column value=NAME"
        )
    for each in answers.count:
        if each not in able:
            raise InputError(
                f"{profile.name}: cannot count {each}; expected one of: {', '.join(able)}"
            )
    labels = {column.name for column in profile.labels}
    for each in answers.by:
        if each not in labels:
            raise InputError(
                f"{profile.name}: cannot break down by {each}; columns with few different values: "
                f"{', '.join(sorted(labels)) or 'none'}"
            )
    if VALUE in answers.count and answers.by:
        raise InputError(
            f"{profile.name}: values of a log of changes cannot be broken down by "
            f"{', '.join(answers.by)}. Leave --by out"
        )
    for each in answers.event:
        if each not in profile.events:
            known = ", ".join(list(profile.events)[:20]) or "none: no column of events was found"
            raise InputError(f"{profile.name}: no event is called {each}; events: {known}")


def questions_on_events(
    profile: InputProfile, answers: FirstAnswers, period: Period
) -> tuple[dict[str, Any], list[str]]:
    """Return the sections on measures, and notes."""
    chosen = _Chosen(profile, answers, period)
    for each in answers.count:
        chosen.ask(each)
    measures, notes = chosen.measures, chosen.notes
    if answers.trust == "shuffle" and answers.private and len(measures) > 1:
        dropped = list(measures)[1:]
        measures = dict(list(measures.items())[:1])
        chosen.ratios.clear()
        notes.append(
            "a job with a private attribute that trusts the shuffler has one measure: "
            f"{', '.join(dropped)} is left out. Write another job for it"
        )
    sections: dict[str, Any] = {"measures": measures}
    if answers.by:
        columns = {column.name: column for column in profile.labels}
        attributes: dict[str, Any] = {}
        for each in answers.by:
            name = _plain_name(each, {*measures, *attributes})
            attributes[name], found = _attribute(columns[each], name, answers, profile.users)
            notes += found
        sections |= {"attributes": attributes, "by": list(attributes)}
    if chosen.ratios:
        sections["ratios"] = chosen.ratios
    changes = chosen.most_changes
    if answers.private:
        # The first cell of a device is a change, too.
        changes += 1
    return {"parameters": _parameters(answers, changes), **sections}, notes


class _Chosen:
    """Measures for what is counted, with the changes of users that they need."""

    def __init__(self, profile: InputProfile, answers: FirstAnswers, period: Period) -> None:
        self.profile, self.answers, self.period = profile, answers, period
        self.measures: dict[str, Any] = {}
        self.ratios: dict[str, Any] = {}
        self.notes: list[str] = []
        self.most_changes = 2
        self._event = {"event": list(answers.event)} if answers.event else {}

    def ask(self, what: str) -> None:
        if what == ACTIVE:
            self._ask_active()
        elif what == EVENTS:
            self._ask_number(EVENTS, {"type": "count", **self._event}, None)
        else:
            column = next(each for each in self.profile.numbers if each.name == what)
            name = _plain_name(what, self.measures)
            event = list(self.answers.event or column.events)
            keys = {"event": event} if event else {}
            self._ask_number(name, {"type": "sum", "number": what, **keys}, column)
            if not self.answers.private:
                self._ask_number(EVENTS, {"type": "count", **keys}, None)
                self.ratios[f"{name}_per_event"] = {"numerator": name, "denominator": EVENTS}

    def _ask_active(self) -> None:
        users, epochs, _ = self._rows(self._event)
        asked = [(name, n) for name, n in self.period.words[2] if n <= max(1, self.period.count)]
        for name, within in asked:
            window = {"within": within} if within > 1 else {}
            self.measures[name] = {"type": "active", **window, **self._event}
            self._allow(activity_changes(users, epochs, within, self.period.count))
        if len(asked) > 1:
            low, high = asked[0][0], asked[1][0]
            self.ratios["stickiness"] = {"numerator": low, "denominator": high}

    def _ask_number(self, name: str, keys: dict[str, Any], column: NumberColumn | None) -> None:
        if name in self.measures:
            return
        users, epochs, numbers = self._rows(keys, column)
        totals = epoch_totals(users, epochs, numbers, self.period.count)
        low, high = usual_range(totals[2])
        where = "sums" if column is not None else "counts"
        if not self.answers.private:
            keys |= {"mean": {"low": low, "high": high}}
            shares = np.clip((totals[2] - low) / (high - low), 0.0, 1.0)
            empty = min(max(-low / (high - low), 0.0), 1.0)
            self._allow(path_changes(*totals[:2], shares, empty, self.period.count))
            self.notes.append(
                f"{name}: the range {low:g} to {high:g} ends near the 99th percentile of the "
                f"users' {where}, which is a look at values. If they are private, write a range "
                "that you know without them"
            )
        else:
            edges = usual_edges(totals[2], whole=column is None)
            keys |= {"buckets": edges}
            self.notes.append(
                f"{name}: the edges of buckets follow from the users' {where}, which is a look at "
                "values. If they are private, write edges that you know without them"
            )
            cells = (np.searchsorted(edges[1:], totals[2], "right") + 1).astype(np.float64)
            # Each other bucket is a change, however far away it is.
            self._allow(path_changes(*totals[:2], cells, 1.0, self.period.count))
        self.measures[name] = keys

    def _rows(
        self, keys: Mapping[str, Any], column: NumberColumn | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]:
        profile = self.profile
        numbers = np.ones(len(profile.moments)) if column is None else column.numbers
        kept = np.isfinite(numbers)
        if "event" in keys:
            kept &= profile.of_events(keys["event"])
        return profile.user_indices[kept], self.period.epochs[kept], numbers[kept]

    def _allow(self, changes: NDArray[np.float64]) -> None:
        """Allow the changes of most users, of all users of the input."""
        per_user = np.zeros(self.profile.users)
        per_user[: len(changes)] = changes
        self.most_changes = fitting_changes(per_user, self.most_changes, self.period.count)


def _plain_name(column: str, taken: Mapping[str, Any] | set[str]) -> str:
    """Return a name that a job file may give a column, and that is not taken."""
    name = re.sub(r"[^a-z0-9_]+", "_", column.rpartition(".")[2].casefold()).strip("_")[:38]
    name = name if re.match("[a-z]", name) else f"a_{name}".rstrip("_")
    name = f"{name}_" if name in RESERVED else name
    while name in taken:
        name += "_"
    return name


def _attribute(
    column: LabelColumn, name: str, answers: FirstAnswers, users: int
) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of an attribute, and notes."""
    public = column.name in answers.public
    values: list[str] = []
    rest: list[str] = []
    for label, count in column.users.items():
        usual = count >= _RARE * users and len(values) < _MOST_GROUPS
        (values if usual and _can_be_label(label) else rest).append(label)
    if not values:
        raise InputError(f"no value of column {column.name} can be a label: {', '.join(rest[:5])}")
    notes = []
    if rest:
        shown = ", ".join(rest[:3]) + (" ..." if len(rest) > 3 else "")
        notes.append(
            f"{name}: {counted(len(rest), 'rare or unusable value')} count as other: {shown}"
        )
    if public and column.several:
        notes.append(
            f"{name}: {column.several:.1%} of the users have several values. A public value comes "
            "from the user list, and is fixed"
        )
    keys: dict[str, Any] = {"values": values}
    if name != column.name:
        keys["column"] = column.name
    if public:
        keys["public"] = True
    return keys, notes


def _can_be_label(label: str) -> bool:
    try:
        AttributeKeys.model_validate({"values": (label,)})
    except ValueError:
        return False
    return True


def _parameters(answers: FirstAnswers, changes: int) -> dict[str, Any]:
    if answers.trust == "shuffle":
        return {"epsilon": answers.epsilon, "delta": 1.0e-6, "max_changes": changes}
    return {"epsilon": answers.epsilon, "max_changes": changes}


def questions_on_values(
    profile: InputProfile, answers: FirstAnswers, period: Period
) -> tuple[dict[str, Any], list[str]]:
    """Return the protocol and parameters for a log of changes, and notes."""
    texts = profile.texts or {}
    folded = {text.casefold() for text in texts}
    numbers = np.array([number_in(text, profile.input_format.decimal) for text in texts])
    parameters = _parameters(answers, _changes_of_values(profile, period))
    shuffled = answers.trust == "shuffle"
    notes: list[str] = []
    if shuffled:
        parameters["dummies"] = "shuffle"
    if folded <= _BOOLEANS | _TRUE | _FALSE and len(folded) <= 4:
        words = {"true": sorted(folded & _TRUE), "false": sorted(folded & _FALSE)}
        return {
            "protocol": "shuffled_counts" if shuffled else "value_stream",
            "parameters": parameters,
            "input": {key: each for key, each in words.items() if each},
        }, notes
    if np.isfinite(numbers).all() and len(texts) >= FEWEST_NUMBERS:
        low, high = usual_range(numbers)
        domain: dict[str, Any] = {"low": low, "high": high, "buckets": 16}
        notes.append(
            f"the range {low:g} to {high:g} ends near the 99th percentile of the values. If they "
            "are private, write a range that you know without them"
        )
        parameters |= {"domain": domain} if shuffled else domain
        return {
            "protocol": "shuffled_counts" if shuffled else "range_values",
            "parameters": parameters,
            "input": {"clamp": True},
        }, notes
    if len(texts) > _MOST_VALUES:
        raise InputError(
            f"{profile.name}: column {profile.value} has {len(texts):,} different texts; expected "
            f"0 and 1, numbers, or at most {_MOST_VALUES} labels. For longer lists, see the "
            "parameter 'domain' of sampled_response and count_min"
        )
    parameters["domain"] = list(texts)
    notes.append(
        "the labels are those of the input. If they are private, write labels that you know "
        "without it"
    )
    if shuffled:
        parameters["cells"] = "count_min"
    return {
        "protocol": "shuffled_counts" if shuffled else "hadamard_values",
        "parameters": parameters,
    }, notes


def _changes_of_values(profile: InputProfile, period: Period) -> int:
    """Return the number of changes of most users, a power of two."""
    users, codes = profile.user_indices, profile.value_codes
    order = np.lexsort((profile.moments, users))
    users, codes = users[order], codes[order]
    changed = np.ones(len(users), np.bool_)
    changed[1:] = (users[1:] != users[:-1]) | (codes[1:] != codes[:-1])
    per_user = np.bincount(users[changed], minlength=profile.users)
    return fitting_changes(per_user.astype(np.float64), 2, period.count)
