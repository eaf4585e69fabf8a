"""Test equivalent spellings in inputs: accents, numbers, marks between files, ends of days."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.users import load_users
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_problems import JobError

_COMPOSED, _DECOMPOSED = "caf\u00e9", "cafe\u0301"
_JOB = """
name: drinks
protocol: hadamard_values
parameters: {{epsilon: 4, max_changes: 1, domain: [{labels}]}}
epochs: {{count: 2}}
"""


def test_labels_that_differ_only_in_unicode_form_are_rejected() -> None:
    with pytest.raises(JobError, match="twice"):
        parse_job(_JOB.format(labels=f"{_COMPOSED}, {_DECOMPOSED}"))


def test_byte_order_mark_between_concatenated_files_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "changes.csv"
    path.write_text("\ufeffuser,epoch,value\na,1,1\n\ufeffa,2,0\n", encoding="utf-8")
    assert load_change_log(path).users == ("a",)


_ROWS = b"user,epoch,value\na,1,1\n"


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("changes.csv", _ROWS)


def _bytes(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        pytest.param(_zip, "a ZIP archive or an Excel workbook", id="zip"),
        pytest.param(_bytes(lzma.compress(_ROWS)), "with xz", id="xz"),
        pytest.param(_bytes(bz2.compress(_ROWS)), "with bzip2", id="bzip2"),
        pytest.param(_bytes(b"\x28\xb5\x2f\xfd\x24"), "with zstd", id="zstd"),
        pytest.param(_bytes(gzip.compress(gzip.compress(_ROWS))), "gzip twice", id="gzip twice"),
        pytest.param(_bytes(gzip.compress(lzma.compress(_ROWS))), "with xz", id="xz in gzip"),
        pytest.param(_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1"), "an old Excel workbook", id="xls"),
    ],
)
def test_error_mentions_the_container_format_rather_than_an_encoding(
    tmp_path: Path, write: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / "changes.csv"
    write(path)
    with pytest.raises(InputError, match=said) as caught:
        load_change_log(path)
    assert "encoding" not in str(caught.value)
    with pytest.raises(InputError, match=said):
        load_users(path)
