"""Make an item log of the baskets of a Belgian supermarket, with at most 8 items per basket.

    python -m experiments.prepare_retail SOURCE OUT [--items 8] [--seed 1]

SOURCE is ``retail.dat`` from the Frequent Itemset Mining Dataset Repository (T. Brijs; free for
research with citation), http://fimi.uantwerpen.be/data/: a line for every basket, with the numbers
of its items. A user is a basket. From a larger basket, ``--items`` items are drawn at random. The
labels of all items, ascending, are written next to OUT. The same source and options give the same
bytes.

The log has 88,162 baskets and 16,470 distinct items. It keeps 549,139 of 908,576 basket entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.preparation import prepare


def baskets(contents: bytes) -> list[list[int]]:
    """Return the distinct items of each basket, ascending."""
    return [sorted(set(map(int, line.split()))) for line in contents.splitlines()]


def item_rows(contents: bytes, items: int, seed: int) -> Iterator[tuple[int, str]]:
    rng = np.random.default_rng(seed)
    for user, basket in enumerate(baskets(contents), start=1):
        drawn = rng.choice(basket, items, replace=False) if len(basket) > items else basket
        for item in sorted(map(int, drawn)):
            yield user, str(item)


def labels(contents: bytes) -> list[str]:
    return list(map(str, sorted(set().union(*baskets(contents)))))


def main(arguments: Sequence[str] | None = None) -> None:
    prepare(
        arguments,
        "prepare_retail",
        "Make an item log of supermarket baskets.",
        "http://fimi.uantwerpen.be/data/retail.dat.gz",
        item_rows,
        [("items", 8, "maximum items per basket"), ("seed", 1, "seed of the draw")],
        labels,
    )


if __name__ == "__main__":
    main()
