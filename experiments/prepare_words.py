"""Make an item log of users with one word each, drawn by the frequency of words in films.

    python -m experiments.prepare_words SOURCE OUT [--users 1000000] [--seed 1]

SOURCE is ``en_50k.txt`` (OpenSubtitles 2018, English) from
https://github.com/hermitdave/FrequencyWords, content licensed under CC BY-SA 4.0: a line ``word
count`` for each of 50,000 words. All words are written next to OUT, as labels. The same source and
options give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.preparation import prepare


def word_counts(contents: bytes) -> dict[str, int]:
    lines = [line.rsplit(" ", 1) for line in contents.decode("utf-8").splitlines()]
    if not lines or any(len(line) != 2 for line in lines):
        raise ValueError("expected a file of lines WORD COUNT")
    counts = {word: int(count) for word, count in lines}
    if len(counts) < len(lines):
        raise ValueError("a word occurs twice; expected distinct words")
    return counts


def item_rows(contents: bytes, users: int, seed: int) -> Iterator[tuple[int, str]]:
    counts = word_counts(contents)
    words, weights = list(counts), np.array(list(counts.values()), np.float64)
    drawn = np.random.default_rng(seed).choice(len(words), users, p=weights / weights.sum())
    for user, word in enumerate(drawn.tolist(), start=1):
        yield user, words[word]


def labels(contents: bytes) -> list[str]:
    return list(word_counts(contents))


def main(arguments: Sequence[str] | None = None) -> None:
    prepare(
        arguments,
        "prepare_words",
        "Make an item log of users with one word each.",
        "https://github.com/hermitdave/FrequencyWords/blob/master/content/2018/en/en_50k.txt",
        item_rows,
        [("users", 1_000_000, "number of users to draw"), ("seed", 1, "seed of the draw")],
        labels,
    )


if __name__ == "__main__":
    main()
