"""Common parts of scripts that make change logs and single-epoch item logs."""

from __future__ import annotations

import argparse
import csv
import gzip
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

Row = tuple[int, int, int]
"""User, epoch and value."""

Option = tuple[str, int, str]
"""Name, default and meaning of a numeric option of a script."""


def read_plain(path: Path) -> bytes:
    """Return the contents of a file, decompressed if it is gzip."""
    data = path.read_bytes()
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def labels_path(log: Path) -> Path:
    """Return the path of a log's labels, such as ``retail-items.txt`` for ``retail.csv.gz``."""
    return log.with_name(f"{log.name.partition('.')[0]}-items.txt")


def prepare(
    arguments: Sequence[str] | None,
    name: str,
    purpose: str,
    where: str,
    make: Callable[..., Iterable[tuple[int, str]]],
    options: Sequence[Option] = (),
    labels: Callable[[bytes], Sequence[str]] | None = None,
    as_it_is: tuple[str, ...] = (),
) -> None:
    """Run the command of a script: ``python -m experiments.NAME SOURCE OUT``.

    * `make` returns the user and value of every row from the contents of SOURCE and the values of
      the options; it raises `ValueError` for invalid contents.
    * `labels` returns the labels of all items from the contents; they are written next to the log.
    * If OUT ends with `as_it_is`, it becomes a gzip copy of SOURCE once SOURCE has been read.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=purpose,
        epilog=f"Get SOURCE from\n{where}",
        # Keeps URLs on one line, for copying.
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", type=Path, help="plain or gzip")
    parser.add_argument("out", metavar="OUT", type=Path, help="the item log to write, .csv.gz")
    for option, default, meaning in options:
        parser.add_argument(
            f"--{option}", type=int, default=default, help=f"{meaning} (%(default)s)"
        )
    chosen = parser.parse_args(arguments)
    numbers = [getattr(chosen, option) for option, _, _ in options]
    for (option, _, _), number in zip(options, numbers, strict=True):
        if number < 1:
            parser.error(f"--{option}: got {number}; expected an integer of at least 1")
    try:
        contents = read_plain(chosen.source)
        rows = [(user, 1, value) for user, value in make(contents, *numbers)]
        if chosen.out.name.endswith(as_it_is):
            chosen.out.write_bytes(gzip.compress(contents, compresslevel=9, mtime=0))
        else:
            write_change_log(rows, chosen.out)
        if labels is not None:
            labels_path(chosen.out).write_text("".join(f"{each}\n" for each in labels(contents)))
    except OSError as error:
        parser.exit(1, f"{error.filename or chosen.source}: {error.strerror or error}\n")
    except (ValueError, EOFError) as error:
        parser.exit(1, f"{chosen.source}: {error}\n")
    print(f"{chosen.out}: {len(rows):,} rows, {chosen.out.stat().st_size:,} bytes")


def write_change_log(rows: Sequence[tuple[int, int, int | str]], path: Path) -> None:
    """Write ``user,epoch,value`` as gzip, without file name and time, to be reproducible."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("user", "epoch", "value"))
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0))
