"""Test equivalent spellings in inputs: accents, numbers, marks between files, ends of days."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.devices.change_log import load_change_log
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
