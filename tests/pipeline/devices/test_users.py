"""Test user lists: one user per line, or a CSV column; errors have the line of invalid users."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.devices.users import load_roster, load_users


def users_of(folder: Path, data: bytes | str) -> tuple[str, ...]:
    path = folder / "user list"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return load_users(path)


@pytest.mark.parametrize(
    "text",
    [
        "zoe\nann\n",
        "zoe\r\n\r\nann\r\nzoe",
        "\ufeffann\nzoe\n",
        "user\nzoe\nann\n",
        "Name, User ,since\nAnn,ann,2024\nZoe,zoe,2023\n",
    ],
)
def test_user_list_can_be_lines_or_a_csv_column(tmp_path: Path, text: str) -> None:
    for data in (text.encode(), gzip.compress(text.encode())):
        assert users_of(tmp_path, data) == ("ann", "zoe")


def test_user_list_accepts_quoted_users_and_spaces(tmp_path: Path) -> None:
    assert users_of(tmp_path, '"last, first"\n"two\nlines"\n é \n') == (
        " é ",
        "last, first",
        "two\nlines",
    )


def test_user_list_accepts_braces_and_brackets(tmp_path: Path) -> None:
    assert users_of(tmp_path, "{3F2504E0}\n[ann\n") == ("[ann", "{3F2504E0}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "no users; expected one user per line"),
        (
            "ann\nbob,bill\n",
            ":2: 2 fields; expected one user per line, quoted if it contains a comma, or",
        ),
        ('ann\n""\n', ":2: the user is empty"),
        (b"ann\n\n\xff\n", r":3: the user '\udcff' is not valid UTF-8"),
        (gzip.compress(b"ann\n", mtime=0)[:-3], "damaged gzip file"),
        (
            '{"user": "ann"}\n',
            "JSON; expected a user list: text with one user per line, or CSV with a column",
        ),
        (b"PAR1\x15\x04\x15\x10", "a Parquet file; expected a user list: text"),
    ],
)
def test_invalid_user_list_is_rejected(tmp_path: Path, data: bytes | str, message: str) -> None:
    with pytest.raises(InputError) as rejected:
        users_of(tmp_path, data)
    assert str(rejected.value).startswith(f"{tmp_path}/user list: ")
    assert message in str(rejected.value)


@pytest.mark.parametrize("what", ["fifo", "/dev/zero", "folder", "NUL"])
def test_user_list_must_be_a_regular_file(tmp_path: Path, what: str) -> None:
    """A pipe would block, and a device file would be read until memory is exhausted."""
    path = {"/dev/zero": Path("/dev/zero"), "NUL": tmp_path / "a\0b"}.get(what, tmp_path / what)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    with pytest.raises(InputError, match=r"not a regular file|is a folder|NUL character"):
        load_users(path)


def test_overlong_user_list_line_is_not_buffered(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"user list:2: broken CSV: a record has more than 1,048,576 characters"
    ):
        users_of(tmp_path, gzip.compress(b"ann\n" + bytes(1 << 26) + b"\nbob\n", 1))


def test_missing_user_list_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none: No such file or directory$"):
        load_users(tmp_path / "none")


def test_roster_has_public_columns_in_the_order_of_users(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text("OS,user,arm\nios,bob,A\n web ,ann,\nios,bob,A\n")
    roster = load_roster(path, ["os", "arm"])
    assert list(roster) == ["ann", "bob"]
    assert roster.columns == {"os": ("web", "ios"), "arm": ("", "A")}
    assert load_users(path) == ("ann", "bob")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user\nann\n", "no column os, which is a public attribute; expected the columns user"),
        ("ann\n", "no column os"),
        ("user,os\nann,ios\nann,web\n", "contradicts an earlier line for user 'ann'"),
    ],
)
def test_roster_without_one_value_per_user_is_rejected(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "users.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_roster(path, ["os"])
