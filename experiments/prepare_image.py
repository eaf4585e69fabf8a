"""Make an item log from an image: a pixel's value is the number of users at its location.

    python -m experiments.prepare_image SOURCE OUT

SOURCE is a PGM file (P5) with 8 bits per pixel. A user is a unit of luminosity.

* ``night-lights``: the earth at night (NASA, public domain) in 1024 x 512 pixels. It is the red
  channel of ``earth-night.jpg`` from https://github.com/vasturiano/three-globe without background,
  averaged over 4 x 4 pixels. 11 % of 524,288 pixels are not black; 923,265 users.
* ``esa-horse``: scikit-image's outline of a horse (CC0), 320 x 274 pixels, of which 4.5 % are not
  black; 459,254 users.
* ``esa-camera``: scikit-image's cameraman (CC0), 512 x 512 pixels; 33,832,495 users.

The experiments ``esa-...`` read images unchanged: for them OUT must end in ``.pgm.gz``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.evaluation.images import pixels
from experiments.preparation import prepare


def item_rows(contents: bytes) -> Iterator[tuple[int, str]]:
    image = pixels(contents)
    rows, columns = np.nonzero(image)
    points = np.repeat(np.stack([rows, columns], axis=1), image[rows, columns], axis=0)
    for user, (row, column) in enumerate(points.tolist(), start=1):
        yield user, f"{row};{column}"


def main(arguments: Sequence[str] | None = None) -> None:
    prepare(
        arguments,
        "prepare_image",
        "Make an item log from an image, with one user per unit of luminosity.",
        "https://github.com/vasturiano/three-globe/blob/master/example/img/earth-night.jpg",
        item_rows,
        as_it_is=(".pgm.gz",),
    )


if __name__ == "__main__":
    main()
