"""Measure protocols of dpstream and of other libraries on the same users, in one run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
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
"""Note: the source of multi-freq-ldpy states that its OLH is pure-LDP's."""
SLOW: Final = {"OLH": (1.0,)}
"""Protocols whose server takes a minute, with the epsilons to measure."""

LETTERS: Final = 6
"""Length to which words are cut or padded, as in pure-LDP's experiments."""
SYMBOL_BITS: Final = 5
WANTED: Final = 32
SEARCHES: Final = (("PEM", "flh"), ("PEM", "hcms"), ("TreeHist", "flh"))
"""Algorithms and the oracles of their sketches: Hadamard count-mean sketch, fast local hashing."""

_TOGETHER: Final = 20_000
# Clock tick in seconds: the minimum duration from which rates are computed.
_TICK: Final = 0.004


@dataclass(frozen=True, slots=True)
class Oracle:
    """Result of a protocol; unmeasured fields are None, and `note` states the reason.

    Attributes:
        rmse: Root mean squared error of unbiased estimates over all items (users), averaged over
            all draws.
        clipped: `rmse` after clipping at zero and scaling to the number of users.
        bytes: Minimum size of a report.
        randomized: Number of reports randomized per processor second.
        served: Number of reports aggregated, with estimates of all items, per processor second.
        uncertainty: Standard error of `rmse`; None for a single draw.
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
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Search:
    """Result and processor time of a search for the most frequent words.

    Attributes:
        recall: Number of the top 32 words that are listed.
        unheld: Number of listed words that no user has.
        randomizing: Processor seconds for all users.
        serving: Processor seconds for aggregating and searching.
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
        return asdict(self)


def zipf_items(users: int = USERS, items: int = ITEMS, seed: int = 1) -> NDArray[np.int64]:
    """Return the item of each user, numbered from 0."""
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
    """Measure all protocols at all epsilons on the same items, which differ between draws."""
    found: dict[tuple[str, str, float], list[Oracle]] = {}
    for draw in range(1, draws + 1):

        def tell(what: str, draw: int = draw) -> None:
            on_progress(f"draw {draw} of {draws}: {what}")

        for one in _measured(python, folder, limit, tell, epsilons, draw):
            found.setdefault((one.library, one.protocol, one.epsilon), []).append(one)
    for alike in found.values():
        yield together(alike)


def together(draws: Sequence[Oracle]) -> Oracle:
    """Combine draws of a protocol at an epsilon into means, and the standard error of `rmse`."""
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
        requested = [each for each in epsilons if each in SLOW.get(oracle, epsilons)]
        task = ["oracle", library, oracle, ",".join(map(str, requested)), str(ITEMS), str(path)]
        for epsilon, done in _answers(python, task, limit, requested):
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
    """Yield another library's answer at each epsilon; after a failure, yield the reason."""
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
        devices.enroll(users, rng)
        return devices.report(1, values, None, rng)

    # Warm up data that is built once for many epochs: noise tables, and arrays of a space.
    randomize()
    before = time.process_time()
    words = randomize()
    between = time.process_time()
    aggregator.add(1, words, None)
    estimate: Any = aggregator.estimate(1, Participation.constant(1, users))
    after = time.process_time()
    return Oracle(
        "dpstream",
        "projective_geometry",
        epsilon,
        *_errors(estimate.values, held),
        entry.message_format(law).report_bytes,
        _rate(users, between - before),
        _rate(users, after - between),
    )


def _rate(users: int, seconds: float) -> float:
    """Return users per processor second, assuming at least one clock tick.

    Linux can account multithreaded processes in ticks, and some libraries use several threads.
    """
    return users / max(seconds, _TICK)


def _errors(estimates: NDArray[np.float64], held: NDArray[np.int64]) -> tuple[float, float]:
    ground_truth = np.bincount(held, minlength=ITEMS)
    cut = np.clip(estimates, 0.0, None)
    scaled = cut * len(held) / max(float(cut.sum()), 1e-9)
    return tuple(math.sqrt(np.square(each - ground_truth).mean()) for each in (estimates, scaled))  # type: ignore[return-value]


def held_words(contents: bytes, users: int, seed: int = 1) -> list[str]:
    """Draw each user's word, among words of at most `LETTERS` letters of `ALPHABET`."""
    shares: dict[str, int] = {}
    for word, count in word_counts(contents).items():
        if set(word) <= set(ALPHABET[:-1]):
            cut = word[:LETTERS].ljust(LETTERS, ALPHABET[-1])
            shares[cut] = shares.get(cut, 0) + count
    words, weights = list(shares), np.array(list(shares.values()), np.float64)
    drawn = np.random.default_rng(seed).choice(len(words), users, p=weights / weights.sum())
    return [words[number] for number in drawn.tolist()]


def word_number(word: str) -> int:
    """Return the item number of a word: five bits per letter, 0 for padding, plus one.

    >>> word_number("......"), word_number(".....a"), word_number("a.....")
    (1, 2, 33554433)
    """
    number = 0
    for letter in word:
        number = number << SYMBOL_BITS | (ALPHABET.index(letter) + 1) % len(ALPHABET)
    return number + 1


def measure_searches(
    python: Path | None,
    folder: Path,
    words: Sequence[str],
    limit: int,
    on_progress: Callable[[str], None] = lambda _: None,
    epsilons: Sequence[float] = (2.0, 4.0),
) -> Iterator[Search]:
    """Measure searches for the most frequent words, by dpstream and by pure-LDP."""
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
        requested = ",".join(map(str, epsilons))
        task = ["search", algorithm, sketch, requested, str(WANTED), str(path)]
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
    parameters = ProjectiveGeometryParameters(epsilon, Bits(LETTERS * SYMBOL_BITS))
    entry, users = PROTOCOLS["projective_geometry"], len(items)
    law = entry.calibrate(parameters, 1, users)
    aggregator, rng = entry.aggregation.make(law, parameters), cryptographic_generator()
    randomizing = serving = 0.0
    for start in range(0, users, _TOGETHER):
        values = items[start : start + _TOGETHER, None]
        before = time.process_time()
        devices = entry.randomizer(law)
        devices.enroll(len(values), rng)
        reports: Any = devices.report(1, values, None, rng)
        between = time.process_time()
        aggregator.add(1, reports, None)
        randomizing += between - before
        serving += time.process_time() - between
    before = time.process_time()
    estimate: Any = aggregator.estimate(1, Participation.constant(1, users))
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
