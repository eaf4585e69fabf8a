"""Whether the stage adds the noise that the law asks for.

What the stage adds to the count of a word is Poisson distributed in every law that has such
dummies, and a released count is that and what devices sent, which is nothing or more. So a stage
that adds less is seen where devices send little; or, where raw reports are known, in any case.

The test needs no knowledge of a law's tables. For every window `_REFERENCES` other sets of dummies
are drawn from the installed law, with seeds that are no secret. Of the dummies of one word in these
and in the windows together, a number n, those in the windows are binomially distributed with n and
1 / (1 + references): for sums of independent Poisson numbers whose means stand in that proportion
this is exact. Released counts are no smaller than dummies, so it bounds the probability of counts
as small as those found. All words are tested at once, and every word for itself, where there are
few; the probability of convicting a stage that keeps to the law, in all tests together, is at most
`FALSE_CONVICTION`.

With the noise key there is nothing to test: the dummies are known, and must be there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, poisson

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.operations.stage_verification.contents import most_words
from pipeline.operations.stage_verification.evidence import Attempt, Evidence
from pipeline.operations.stage_verification.findings import Finding, Violation, in_order
from pipeline.stages.stage_noise import StageNoise
from randomizers.randomness import keyed_generator
from topics.words import Words

FALSE_CONVICTION: Final = 1e-9
WINDOWS_TESTED: Final = 256
_REFERENCES: Final = 16
_WORDS_TESTED: Final = 4096
_PROMISE: Final = "the stage adds the noise that the law asks for, from one noise key"


@dataclass(frozen=True, slots=True)
class Sent:
    """What devices sent for a window.

    Attributes:
        messages: how many words.
        tested: those of them that may be tested one by one.
    """

    messages: int
    tested: Words | None

    @classmethod
    def of(cls, messages: int, pieces: Iterable[Words], tested: Words | None) -> Sent:
        """Of so many words, of which none but `tested` are kept."""
        if tested is None:
            return cls(messages, None)
        counts = np.zeros(tested.rows, np.int64)
        for piece in pieces:
            counts += _counts(tested, piece)
        rows = counts > 0
        return cls(messages, Words(tested.values[rows], counts[rows].astype(np.uint64)))


def tested_words(evidence: Evidence) -> Words | None:
    """The words of which each is tested for its noise; None: none is, or there are too many."""
    job = evidence.job
    return None if job.stage_dummies is None else _drawn(job, _latest(evidence)).words


def noise(evidence: Evidence, key: NoiseKey | None, reports: Mapping[int, Sent]) -> Finding:
    """Whether released windows hold the stage's noise.

    Args:
        evidence: to look at.
        key: the job's, of an auditor who was given it.
        reports: by epoch, what devices sent, where that is known.

    Raises:
        NoiseKeyError: it is another one.
    """
    job = evidence.job
    if not job.needs_noise_key:
        return Finding("noise", "the stage adds no noise: devices do, or none is needed", 0)
    if job.stage_dummies is None:
        what = "deletes messages" if job.crowds_law is not None else "adds noise to a sum"
        return Finding(
            "noise",
            _PROMISE,
            0,
            missing=f"the stage {what}: without raw reports nobody can tell by how much, with them "
            "and the noise key see raw contents",
        )
    windows = _latest(evidence)
    if key is not None:
        return _recomputed(evidence, windows, StageNoise(job, key))
    if job.lanes > 1:
        missing = "how much of its noise is in which lane: give --noise-key FILE"
        return Finding("noise", _PROMISE, 0, missing=missing)
    return _tested(evidence, windows, reports)


def _latest(evidence: Evidence) -> list[Attempt]:
    """The windows that are looked at."""
    released = evidence.released(evidence.job.decided_role).values()
    return sorted(released, key=lambda each: each.epoch)[-WINDOWS_TESTED:]


def _recomputed(evidence: Evidence, windows: list[Attempt], drawn: StageNoise) -> Finding:
    violations, checked = [], 0
    for window, words in evidence.words(windows):
        checked += 1
        dummies = drawn.dummies(window.epoch, window.instance)
        assert dummies is not None
        _, (released, added) = tally(words, dummies)
        if (added > released).any():
            lost = int(np.maximum(added - released, 0).sum())
            why = f"{lost:,} of {dummies.messages:,} dummies of the noise key are not in it"
            violations.append(Violation(window.epoch, why))
            continue
        left, most = window.messages - dummies.messages, _most(evidence, window.epoch)
        if most is not None and left > most:
            why = f"{left:,} words beside the noise, contributors send at most {most:,}"
            violations.append(Violation(window.epoch, why))
    return Finding("noise", f"{_PROMISE}: recomputed", checked, violations=in_order(violations))


def _most(evidence: Evidence, epoch: int) -> int | None:
    held = evidence.decisions.get(epoch)
    if held is None:
        return None
    return most_words(evidence.job, epoch, held[0].manifest.contributors)


def tally(*multisets: Words) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """How often each word is in each multiset.

    Returns:
        The distinct words, shape (n, width), in order; counts, int64, shape (multisets, n).
    """
    rows, places = np.unique(
        np.concatenate([each.values for each in multisets]), axis=0, return_inverse=True
    )
    counts = np.zeros((len(multisets), len(rows)), np.int64)
    start = 0
    for index, each in enumerate(multisets):
        own = places.reshape(-1)[start : start + each.rows]
        start += each.rows
        np.add.at(counts[index], own, 1 if each.counts is None else each.counts.astype(np.int64))
    return rows, counts


@dataclass(frozen=True, slots=True)
class CountTest:
    """What a count says of the noise in it.

    Attributes:
        found: the released count, of some windows together.
        reference: dummies in `_REFERENCES` times as many.
        threshold: a count up to this one convicts; -1: none does.
    """

    found: int
    reference: int
    threshold: int

    @property
    def convicts(self) -> bool:
        """Whether there is too little noise in it."""
        return self.found <= self.threshold

    def power(self, share: float, reports: int = 0) -> float:
        """The probability of convicting a stage that adds a share of its noise.

        Args:
            share: from 0 to 1.
            reports: what devices sent of it.
        """
        mean = share * self.reference / _REFERENCES
        return float(poisson.cdf(self.threshold - reports, mean))


def count_test(found: int, reference: int, level: float) -> CountTest:
    """Whether a count is too small to hold its noise.

    Args:
        found: as in `CountTest`.
        reference: as in `CountTest`.
        level: the probability of convicting a stage that keeps to the law.
    """
    low, high = -1, reference // _REFERENCES + 1
    while high - low > 1:
        middle = (low + high) // 2
        chance = binom.cdf(middle, middle + reference, 1 / (1 + _REFERENCES))
        low, high = (middle, high) if chance <= level else (low, middle)
    return CountTest(found, reference, low)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Dummies as the law draws them, in `_REFERENCES` times as many windows.

    Attributes:
        total: how many.
        words: which, in canonical order; None where there are too many words to test each.
    """

    total: int
    words: Words | None

    def counts(self, held: Words) -> NDArray[np.int64]:
        """How often these words are in others, shape (words,)."""
        assert self.words is not None
        return _counts(self.words, held)


def _counts(words: Words, held: Words) -> NDArray[np.int64]:
    """How often each of some words is in others, shape (words,)."""
    _, (own, others) = tally(words, held)
    chosen: NDArray[np.int64] = others[own > 0]
    return chosen


def _drawn(job: DeployedJob, windows: Iterable[Attempt]) -> _Drawn:
    form = job.form_of(job.decided_role)
    words: Words | None = Words(np.zeros((0, form.width), form.dtype), np.zeros(0, np.uint64))
    total = 0
    for window in windows:
        reference = _reference(job, window.epoch)
        total += reference.messages
        if words is not None:
            words = _together(words, reference)
            words = words if words.rows <= _WORDS_TESTED else None
    return _Drawn(total, words)


def _tested(evidence: Evidence, windows: list[Attempt], reports: Mapping[int, Sent]) -> Finding:
    while True:
        drawn = _drawn(evidence.job, windows)
        total, found, seen = 0, np.zeros(0, np.int64), list[Attempt]()
        if drawn.words is not None:
            found = np.zeros(drawn.words.rows, np.int64)
        for window, words in evidence.words(windows):
            seen.append(window)
            total += words.messages
            if drawn.words is not None:
                found += drawn.counts(words)
            sent = reports.get(window.epoch)
            if sent is not None:
                total -= sent.messages
                if drawn.words is not None and sent.tested is not None:
                    found -= drawn.counts(sent.tested)
        if len(seen) == len(windows):
            break
        # Of those that are gone meanwhile there must be no dummies either.
        windows = [each for each in windows if each in seen]
    if not windows:
        return Finding("noise", _PROMISE, 0, missing="windows, which are deleted after retention")
    reference = drawn.total
    tests = [first := count_test(total, reference, FALSE_CONVICTION / 4)]
    if drawn.words is not None and drawn.words.rows:
        assert drawn.words.counts is not None
        level = FALSE_CONVICTION / (4 * drawn.words.rows)
        expected = drawn.words.counts.astype(np.int64)
        tests += [
            count_test(int(each), int(of), level) for each, of in zip(found, expected, strict=True)
        ]
    violations = [
        Violation(
            None,
            f"{test.found:,} of {'all words' if test is first else 'a word'} in "
            f"{len(windows):,} windows, of the noise alone about "
            f"{test.reference / _REFERENCES:,.0f} are expected: so few are there with a "
            f"probability of at most {FALSE_CONVICTION:g}",
        )
        for test in tests
        if test.convicts
    ]
    violations += _too_many(evidence, windows, reports, reference)
    return Finding(
        "noise",
        _PROMISE,
        len(windows),
        violations=in_order(violations[:10]),
        missing="which noise it is: with --noise-key FILE it is recomputed",
        notes=(_power_in_words(first, "all words together"), _power_of_words(tests[1:])),
    )


def _reference(job: DeployedJob, epoch: int) -> Words:
    """Dummies as the law draws them, of so many windows of an epoch."""
    draw = job.stage_dummies
    assert draw is not None
    sets = []
    for index in range(_REFERENCES):
        seed = hashlib.sha256(job.deployment + epoch.to_bytes(8, "big") + bytes([index])).digest()
        drawn = draw(job.local_epoch(epoch), keyed_generator(seed))
        sets.append(Words(drawn.values, drawn.counts))
    return _together(*sets)


def _together(*multisets: Words) -> Words:
    """All that is in multisets."""
    rows, counts = tally(*multisets)
    total = counts.sum(axis=0)
    return Words(rows[total > 0], total[total > 0].astype(np.uint64))


def _too_many(
    evidence: Evidence, windows: list[Attempt], reports: Mapping[int, Sent], reference: int
) -> list[Violation]:
    """More words than contributors send at most, and all the noise there can be."""
    mosts = [
        reports[window.epoch].messages if window.epoch in reports else _most(evidence, window.epoch)
        for window in windows
    ]
    most = sum(each for each in mosts if each is not None)
    beyond = sum(window.messages for window in windows) - most
    if None in mosts or beyond <= 0:
        return []
    chance = binom.sf(beyond - 1, beyond + reference, 1 / (1 + _REFERENCES))
    if chance > FALSE_CONVICTION / 4:
        return []
    why = (
        f"{beyond:,} words more than contributors send at most, the noise is about "
        f"{reference / _REFERENCES:,.0f}: there is more than the law has"
    )
    return [Violation(None, why)]


def _power_in_words(test: CountTest, of: str) -> str:
    room = test.threshold - test.reference / _REFERENCES / 2
    if room < 0:
        return f"of {of}: there is too little noise to tell a stage with half of it"
    return (
        f"of {of}: a stage with half the noise is convicted with probability "
        f"{test.power(0.5):.4f} where devices send nothing, and rather than not where they send up "
        f"to {room:,.0f}; here there are {test.found:,}"
    )


def _power_of_words(tests: list[CountTest]) -> str:
    if not tests:
        return "single words: too many to test each"
    best = max(tests, key=lambda test: test.threshold - test.found / 2)
    return _power_in_words(best, f"the most telling of {len(tests):,} words")
