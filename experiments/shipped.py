"""The list of experiments; ``python -m experiments.shipped`` prints it as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Shipped:
    """An experiment before it is loaded.

    Attributes:
        name: Name of the experiment's file or module.
        reproduces: Table or theorem of a paper that the experiment reproduces, or empty.
    """

    name: str
    command: str
    title: str
    reproduces: str


PROGRAMS = {
    "esa_heavy_hitters": Shipped(
        "esa_heavy_hitters",
        "python -m experiments.esa_heavy_hitters",
        "Heavy hitters of a browser: 203,950,512 users, 1,778,120 items",
        'Table I of "Encode, Shuffle, Analyze Privacy Revisited"',
    ),
    "learn_mnist": Shipped(
        "learn_mnist",
        "python -m experiments.learn_mnist FOLDER",
        "Digits of MNIST learned with ldp_sgd, and membership inference",
        'Tables XI and XII of "Encode, Shuffle, Analyze Privacy Revisited"',
    ),
}
"""Experiments that are separate programs, by module name."""


def shipped_experiments() -> dict[str, Path]:
    return dict(sorted((path.stem, path) for path in FOLDER.glob("*.yaml")))


def listed() -> list[Shipped]:
    return [*map(_of_file, shipped_experiments().values()), *PROGRAMS.values()]


def _of_file(path: Path) -> Shipped:
    keys = yaml.safe_load(path.read_text())
    command = f"python -m experiments {path.stem}"
    return Shipped(path.stem, command, keys["title"], keys.get("reproduces", ""))


def markdown() -> str:
    rows = [f"| `{each.command}` | {each.title} | {each.reproduces} |" for each in listed()]
    return "\n".join(["| command | what it measures | reproduces |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(markdown())
