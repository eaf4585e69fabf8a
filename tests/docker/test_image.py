"""Test the Dockerfile without Docker: it copies existing files, and installs all of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
PACKAGES = ("aggregators", "dpstream", "pipeline", "randomizers", "topics")
# Files that are used in the repository, but not by installed code.
LEFT_OUT = (
    # Published by `npm pack`; only the modules that a demo page loads are installed.
    "randomizers/javascript/[!s]*",
    "randomizers/javascript/.npmrc",
    "randomizers/javascript/src/*.d.ts",
)


def copied() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_files_copied_into_the_image_exist_and_are_not_ignored() -> None:
    assert set(PACKAGES) < set(copied())
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied())
    for source in copied():
        assert (ROOT / source).exists(), source


def test_image_runs_without_root_and_build_tools() -> None:
    last = DOCKERFILE.split("\nFROM ")[-1]
    assert re.search(r"^USER (?!root)\w+$", last, re.MULTILINE)
    assert 'ENTRYPOINT ["dpstream"]' in last
    assert "/healthz" in last
    assert "pip uninstall" in last
    assert "pip install" not in last
    for image in re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE):
        assert re.fullmatch(r"python:3\.\d+-slim-\w+", image)


def test_requirements_are_pinned_to_allowed_versions() -> None:
    lines = (ROOT / "docker" / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        requirement = Requirement(text)
        version = pinned[requirement.name.lower()]
        assert requirement.specifier.contains(version), f"{text}: {version}"


@pytest.mark.slow
def test_installed_package_is_complete(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                source / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", ".*", "node_modules"),
            )
        elif "/" not in name:
            shutil.copy(ROOT / name, source)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('..'))"
    done = subprocess.run(
        [sys.executable, "-c", build],
        cwd=source,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        installed = set(archive.namelist())
    expected = {
        path.relative_to(source).as_posix().removeprefix("dpstream/")
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file()
    }
    expected = {path for path in expected if not any(fnmatch(path, p) for p in LEFT_OUT)}
    outside = {path for path in installed if not path.startswith("dpstream/")}
    inside = {path.removeprefix("dpstream/") for path in installed - outside}
    assert expected - inside == set()
    assert any(path.startswith("pipeline/demo/") and path.endswith(".yaml") for path in inside)
    assert all(path.split("/")[0].startswith("dpstream-") for path in outside), outside
