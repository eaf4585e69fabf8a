"""Pytest plugin that records the result of a run, and the file of an imported module.

It is loaded in the mutated copy (``-p tests.mutations.witness``). Environment variables specify the
output file and the module whose file is recorded.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

REPORT: Final = "DPSTREAM_MUTATION_REPORT"
MODULE: Final = "DPSTREAM_MUTATED_MODULE"

_passed: list[str] = []
_failures: list[dict[str, Any]] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        _note(item.nodeid, report.when, call.excinfo)
    elif report.passed and report.when == "call":
        _passed.append(item.nodeid)
    return report


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector, call: pytest.CallInfo[Any], report: Any
) -> None:
    if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
        _note(node.nodeid, "collect", call.excinfo)


def pytest_sessionfinish() -> None:
    module = sys.modules.get(os.environ[MODULE])
    imported = None if module is None else module.__file__
    body = {"passed": _passed, "failures": _failures, "imported": imported}
    Path(os.environ[REPORT]).write_text(json.dumps(body))


def _note(name: str, when: str | None, raised: pytest.ExceptionInfo[BaseException]) -> None:
    kinds = [kind.__name__ for kind in raised.type.__mro__]
    said = str(raised.value).strip().split("\n")[0][:200]
    _failures.append({"test": name, "when": when, "kinds": kinds, "said": said})
