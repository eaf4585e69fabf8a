"""Test the guide for app developers: its job can be deployed, and its examples run."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.descriptions import described
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.randomizers.client import HttpTransport, device
from tests.support.pages import ROOT
from tests.support.small_collector import OPERATOR, SIGNER, START, SmallCollector

PAGE = (ROOT / "randomizers" / "client" / "README.md").read_text()
NODE = shutil.which("node")


def first_job() -> DeployedJob:
    found = re.search(r"^```yaml\n(name: first-report\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    job = deploy_job(parse_job(found[1]), deployed_at=START, deployment=bytes(16))
    return described(job, OPERATOR)


def indented(begin: str, end: str) -> str:
    found = re.search(rf"^ {{8}}{begin}.*?(?=^ {{8}}{end}|^\S|^ {{3}}\S)", PAGE, re.M | re.S)
    assert found is not None
    return re.sub(r"^ {8}", "", found[0], flags=re.MULTILINE)


def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collector = SmallCollector(first_job(), time=START)
    monkeypatch.setattr(device, "HttpTransport", lambda url: HttpTransport(url) and collector)
    monkeypatch.chdir(tmp_path)
    program = indented("from dpstream.randomizers", "</nothing>").replace("PUBLIC KEY", SIGNER)
    exec(program, {})
    said = capsys.readouterr().out
    assert said.startswith(
        "Job first-report asks every minute, with no end date, starting 2026-03-01 "
    )
    assert "waiting=0" in said
    assert "population first-report: epsilon 4 spent, epsilon 8 allowed" in said
    exec(program, {})
    assert "drawn=False" in capsys.readouterr().out
    assert len(collector.taken) == 1


def test_example_with_events_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = PAGE.partition("## Events instead of values")[2].partition("\n## ")[0]
    found = re.search(r"^```yaml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    start = START + 8 * 86_400_000
    job = deploy_job(parse_job(found[1]), deployed_at=start, deployment=bytes(16))
    collector = SmallCollector(described(job, OPERATOR), time=start, open_before=1)
    monkeypatch.setattr(device, "HttpTransport", lambda url: HttpTransport(url) and collector)
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^ {8}(.*\n)", section, re.MULTILINE)
    program = "".join(lines).replace("PUBLIC KEY", SIGNER)
    sentence = re.search(r'"(On how many .*?more\.)"', section, re.DOTALL)
    assert sentence is not None
    for days, told in ((0, "up to epoch 9"), (7, "up to epoch 10")):
        collector.time = start + days * 86_400_000
        monkeypatch.setattr(time, "time_ns", lambda: collector.time * 10**6)
        names: dict[str, Any] = {}
        exec(program, names)
        assert sentence[1].replace("\n", " ") in str(names["device"].terms())
        assert told in capsys.readouterr().out
    assert [epoch for epoch, _ in collector.taken] == [10]


def test_python_example_without_a_collector_exits_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = indented("from dpstream.randomizers", "</nothing>").replace("PUBLIC KEY", SIGNER)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        program = program.replace(":8300", f":{closed.getsockname()[1]}")
        with pytest.raises(
            SystemExit, match=r"^no response .* \(ConnectionRefusedError\): try again"
        ):
            exec(program, {})


def test_examples_in_both_languages_use_the_same_job_and_address() -> None:
    python, page = (
        indented("from dpstream.randomizers", "</nothing>"),
        indented("<!doctype html>", "x{9}"),
    )
    for text in (python, page):
        assert "http://127.0.0.1:8300" in text
        assert first_job().name in text
        assert "PUBLIC KEY" in text
    (path,) = re.findall(r'"/node_modules/dpstream-device/(\S+?)"', page)
    assert (ROOT / "randomizers" / "javascript" / path).is_file()


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_browser_example_is_valid_javascript(tmp_path: Path) -> None:
    assert NODE is not None
    page = indented("<!doctype html>", "x{9}")
    program = page.partition('<script type="module">')[2].partition("</script>")[0]
    assert "device.join(terms)" in program
    path = tmp_path / "page.mjs"
    path.write_text(program)
    checked = subprocess.run(
        [NODE, "--check", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
