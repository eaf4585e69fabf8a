"""The same users for dpstream's protocols and for those of other libraries, in one run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Attendance
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.item_domains import Bits
from dpstream.randomizers.projective_geometry import ProjectiveGeometryParameters
from dpstream.randomizers.randomness import cryptographic_generator
from experiments.prepare_words import word_counts
from tests.benchmarks.peers.environment import PeerError, run_peer
from tests.benchmarks.peers.peer_side import ALPHABET

ITEMS: Final = 1024
USERS: Final = 100_000
EXPONENT: Final = 1.1
EPSILONS: Final = (0.5, 1.0, 2.0, 4.0)
ORACLES: Final = {
    "multi-freq-ldpy": ("GRR", "OUE", "SS"),
    "pure-LDP": ("GRR", "OUE", "OLH", "FastLH", "HR"),
}
"""OLH of multi-freq-ldpy is pure-LDP's, as its source says."""
SLOW: Final = {"OLH": (1.0,)}
"""Whose server takes a minute: at these epsilons alone."""

LETTERS: Final = 6
"""Words are cut, or filled up, to so many, as in pure-LDP's own experiments."""
LETTER_BITS: Final = 5
WANTED: Final = 32
SEARCHES: Final = (("PEM", "flh"), ("PEM", "hcms"), ("TreeHist", "flh"))
"""Algorithms, and the oracle of their sketches: Hadamard count-mean sketch, fast local hashing."""

_TOGETHER: Final = 20_000
# Seconds of a tick: rates of what takes less are those of one.
_TICK: Final = 0.004


@dataclass(frozen=True, slots=True)
class Oracle:
    """How a protocol has done. None where it has not been measured; `note` says why.

    Attributes:
        library: "dpstream" or another.
        protocol: its name there.
        epsilon: of a report.
        rmse: root mean squared error of all items, in users, of estimates without bias; the
            mean over all draws.
        clipped: the same of estimates that are cut at zero and scaled to the number of users.
        bytes: of a report, at least.
        randomized: reports a second of processor time.
        served: the same of adding up and estimating all items.
        note: why there is nothing.
        draws: of users and reports.
        uncertainty: of `rmse`, its standard error; None for a single draw.
    """

    library: str
    protocol: str
    epsilon: float
    rmse: float | None = None
    clipped: float | None = None
    bytes: int | None = None
    randomized: float | None = None
    served: float | None = None
    note: str = ""
    draws: int = 1
    uncertainty: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The figures."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Search:
    """What a search for the words most held has found, and the processor time that it took.

    Attributes:
        library: as of `Oracle`.
        algorithm: its name there.
        epsilon: of a user.
        listed: how many words it has named.
        recall: how many of the 32 most held are among them.
        unheld: how many it has named that nobody holds.
        randomizing: seconds for all users.
        serving: seconds for adding up and searching.
        note: why there is nothing.
    """

    library: str
    algorithm: str
    epsilon: float
    listed: int | None = None
    recall: int | None = None
    unheld: int | None = None
    randomizing: float | None = None
    serving: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The figures."""
        return asdict(self)


def zipf_items(users: int = USERS, items: int = ITEMS, seed: int = 1) -> NDArray[np.int64]:
    """The item of each user, from 0 on."""
    weights = np.arange(1, items + 1) ** -EXPONENT
    drawn = np.random.default_rng(seed).choice(items, users, p=weights / weights.sum())
    return drawn.astype(np.int64)


def measure_oracles(
    python: Path | None,
    folder: Path,
    limit: int,
    on_progress: Callable[[str], None] = lambda _: None,
    epsilons: Sequence[float] = EPSILONS,
    draws: int = 1,
) -> Iterator[Oracle]:
    """All protocols at all epsilons, on the same items, drawn anew as often as is said.

    Those of `SLOW` are measured once.

    Args:
        python: of the peers' environment; None leaves them out.
        folder: for the items.
        limit: seconds for each protocol of another library at each epsilon.
        on_progress: is told what is measured.
        epsilons: of a report.
        draws: of users and reports.
    """
    found: dict[tuple[str, str, float], list[Oracle]] = {}
    for draw in range(1, draws + 1):

        def tell(what: str, draw: int = draw) -> None:
            on_progress(f"draw {draw} of {draws}: {what}")

        for one in _measured(python, folder, limit, tell, epsilons, draw):
            found.setdefault((one.library, one.protocol, one.epsilon), []).append(one)
    for alike in found.values():
        yield together(alike)


def together(draws: Sequence[Oracle]) -> Oracle:
    """Several draws of one protocol at one epsilon: means, and the standard error of `rmse`."""
    measured = [each for each in draws if not each.note]
    if not measured:
        return draws[0]
    errors = [each.rmse for each in measured if each.rmse is not None]

    def mean(name: str) -> float:
        return float(np.mean([getattr(each, name) for each in measured]))

    return replace(
        measured[0],
        rmse=float(np.mean(errors)),
        clipped=mean("clipped"),
        randomized=mean("randomized"),
        served=mean("served"),
        draws=len(measured),
        uncertainty=(
            float(np.std(errors, ddof=1) / math.sqrt(len(errors))) if len(errors) > 1 else None
        ),
    )


def _measured(
    python: Path | None,
    folder: Path,
    limit: int,
    on_progress: Callable[[str], None],
    epsilons: Sequence[float],
    draw: int,
) -> Iterator[Oracle]:
    """One draw of all."""
    held = zipf_items(seed=draw)
    path = folder / "held.npy"
    np.save(path, held)
    labels = tuple(map(str, range(ITEMS)))
    for epsilon in epsilons:
        on_progress(f"dpstream projective_geometry at {epsilon:g}")
        yield _own_oracle(ProjectiveGeometryParameters(epsilon, labels), epsilon, held)
    if python is None:
        return
    for library, oracle in ((each, one) for each, names in ORACLES.items() for one in names):
        if draw > 1 and oracle in SLOW:
            continue
        on_progress(f"{library} {oracle}")
        asked = [each for each in epsilons if each in SLOW.get(oracle, epsilons)]
        task = ["oracle", library, oracle, ",".join(map(str, asked)), str(ITEMS), str(path)]
        for epsilon, done in _answers(python, task, limit, asked):
            yield (
                Oracle(library, oracle, epsilon, note=done)
                if isinstance(done, str)
                else Oracle(
                    library,
                    oracle,
                    epsilon,
                    *_errors(np.array(done["estimates"]), held),
                    done["bytes"],
                    _rate(len(held), done["randomizing_seconds"]),
                    _rate(len(held), done["server_seconds"]),
                )
            )


def _answers(
    python: Path, task: list[str], limit: int, epsilons: Sequence[float]
) -> Iterator[tuple[float, dict[str, Any] | str]]:
    """What another library says at each epsilon; from where it fails on, why."""
    answers, failed = run_peer(python, task, limit), ""
    for epsilon in epsilons:
        try:
            yield epsilon, failed or next(answers)
        except PeerError as error:
            failed = str(error)
            yield epsilon, failed


def _own_oracle(
    parameters: ProjectiveGeometryParameters, epsilon: float, held: NDArray[np.int64]
) -> Oracle:
    entry, users = PROTOCOLS["projective_geometry"], len(held)
    law = entry.calibrate(parameters, 1, users)
    aggregator, rng = entry.aggregation.make(law, parameters), cryptographic_generator()
    values = held[:, None] + 1

    def randomize() -> Any:
        devices = entry.randomizer(law)
        devices.enrol(users, rng)
        return devices.report(1, values, None, rng)

    # What is made once for many epochs: tables of noise, and the arrays of a space.
    randomize()
    before = time.process_time()
    words = randomize()
    between = time.process_time()
    aggregator.add(1, words, None)
    estimate: Any = aggregator.estimate(1, Attendance.constant(1, users))
    after = time.process_time()
    return Oracle(
        "dpstream",
        "projective_geometry",
        epsilon,
        *_errors(estimate.values, held),
        entry.word_form(law).report_bytes,
        _rate(users, between - before),
        _rate(users, after - between),
    )


def _rate(users: int, seconds: float) -> float:
    """Users a second of processor time; of what took less than a tick of its clock, of that tick.

    Of a process with several threads, as some libraries have, Linux may count in ticks.
    """
    return users / max(seconds, _TICK)


def _errors(estimates: NDArray[np.float64], held: NDArray[np.int64]) -> tuple[float, float]:
    truth = np.bincount(held, minlength=ITEMS)
    cut = np.clip(estimates, 0.0, None)
    scaled = cut * len(held) / max(float(cut.sum()), 1e-9)
    return tuple(math.sqrt(np.square(each - truth).mean()) for each in (estimates, scaled))  # type: ignore[return-value]


def held_words(contents: bytes, users: int, seed: int = 1) -> list[str]:
    """The word of each user, of `LETTERS` letters of `ALPHABET`; other words are left out."""
    shares: dict[str, int] = {}
    for word, count in word_counts(contents).items():
        if set(word) <= set(ALPHABET[:-1]):
            cut = word[:LETTERS].ljust(LETTERS, ALPHABET[-1])
            shares[cut] = shares.get(cut, 0) + count
    words, weights = list(shares), np.array(list(shares.values()), np.float64)
    drawn = np.random.default_rng(seed).choice(len(words), users, p=weights / weights.sum())
    return [words[number] for number in drawn.tolist()]


def word_number(word: str) -> int:
    """The item number of a word: five bits a letter, 0 for what fills it up, and one more.

    >>> word_number("......"), word_number(".....a"), word_number("a.....")
    (1, 2, 33554433)
    """
    number = 0
    for letter in word:
        number = number << LETTER_BITS | (ALPHABET.index(letter) + 1) % len(ALPHABET)
    return number + 1


def measure_searches(
    python: Path | None,
    folder: Path,
    words: Sequence[str],
    limit: int,
    on_progress: Callable[[str], None] = lambda _: None,
    epsilons: Sequence[float] = (2.0, 4.0),
) -> Iterator[Search]:
    """The words most held, found by dpstream's search and by those of pure-LDP.

    Args:
        python: of the peers' environment; None leaves them out.
        folder: for the words.
        words: of each user.
        limit: seconds for each search of another library.
        on_progress: is told what is measured.
        epsilons: of a user.
    """
    path = folder / "words.txt"
    path.write_text("\n".join(words), "ascii")
    different, counts = np.unique(np.array(words), return_counts=True)
    held = set(different.tolist())
    most = set(different[np.argsort(-counts, kind="stable")[:WANTED]].tolist())
    for epsilon in epsilons:
        on_progress(f"dpstream's search at {epsilon:g}")
        yield _own_search(words, epsilon, held, most)
    if python is None:
        return
    for algorithm, sketch in SEARCHES:
        name = f"{algorithm}, {sketch.upper()}"
        on_progress(name)
        asked = ",".join(map(str, epsilons))
        task = ["search", algorithm, sketch, asked, str(WANTED), str(path)]
        for epsilon, done in _answers(python, task, limit, epsilons):
            if isinstance(done, str):
                yield Search("pure-LDP", name, epsilon, note=done)
                continue
            found = set(done["found"])
            yield Search(
                "pure-LDP",
                name,
                epsilon,
                len(found),
                len(found & most),
                len(found - held),
                done["randomizing_seconds"],
                done["adding_seconds"] + done["searching_seconds"],
            )


def _own_search(words: Sequence[str], epsilon: float, held: set[str], most: set[str]) -> Search:
    numbers = {word: word_number(word) for word in held}
    items = np.array([numbers[word] for word in words], np.int64)
    parameters = ProjectiveGeometryParameters(epsilon, Bits(LETTERS * LETTER_BITS))
    entry, users = PROTOCOLS["projective_geometry"], len(items)
    law = entry.calibrate(parameters, 1, users)
    aggregator, rng = entry.aggregation.make(law, parameters), cryptographic_generator()
    randomizing = serving = 0.0
    for start in range(0, users, _TOGETHER):
        values = items[start : start + _TOGETHER, None]
        before = time.process_time()
        devices = entry.randomizer(law)
        devices.enrol(len(values), rng)
        reports: Any = devices.report(1, values, None, rng)
        between = time.process_time()
        aggregator.add(1, reports, None)
        randomizing += between - before
        serving += time.process_time() - between
    before = time.process_time()
    estimate: Any = aggregator.estimate(1, Attendance.constant(1, users))
    serving += time.process_time() - before
    found = set(estimate.items.tolist())
    return Search(
        "dpstream",
        "projective_geometry, prefixes",
        epsilon,
        len(found),
        len(found & {numbers[word] for word in most}),
        len(found - set(numbers.values())),
        randomizing,
        serving,
    )
