"""The example of the page for app developers runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from randomizers.client import HttpTransport, device
from tests.support.pages import ROOT
from tests.support.small_collector import SIGNER, SmallCollector, deployed

PAGE = (ROOT / "randomizers" / "client" / "README.md").read_text()


def test_the_example_in_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collector = SmallCollector(deployed())
    monkeypatch.setattr(device, "HttpTransport", lambda url: HttpTransport(url) and collector)
    monkeypatch.chdir(tmp_path)
    found = re.search(r"^ {8}from randomizers.*?(?=^\S|^ {3}\S)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    program = re.sub(r"^ {8}", "", found[0], flags=re.MULTILINE).replace("PUBLIC KEY", SIGNER)
    exec(program, {"ask_user": lambda: True})
    assert len(collector.taken) == 1
    assert "population logins: epsilon 1 spent, epsilon 4 allowed" in capsys.readouterr().out
