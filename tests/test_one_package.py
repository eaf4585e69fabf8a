"""The package is installed only as `dpstream`, from links to the folders of the repository."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.built_wheel import build, copy_sources
from tests.support.sources import FOLDERS, ROOT


@pytest.mark.parametrize("folder", FOLDERS)
def test_package_is_a_folder_of_symbolic_links(folder: str) -> None:
    link = ROOT / "dpstream" / folder
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder


@pytest.mark.slow
def test_wheel_contains_the_whole_package_only(
    tmp_path: Path,
) -> None:
    sources = copy_sources(tmp_path / "sources")
    with zipfile.ZipFile(build(sources, tmp_path / "wheel")) as archive:
        inside = set(archive.namelist())
        (entry_points,) = (name for name in inside if name.endswith(".dist-info/entry_points.txt"))
        assert "= pipeline" not in archive.read(entry_points).decode()
    tops = {name.partition("/")[0] for name in inside}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dpstream"}
    assert {
        "dpstream/py.typed",
        "dpstream/__init__.py",
        "dpstream/pipeline/cli/__main__.py",
    } <= inside
    with tarfile.open(build(sources, tmp_path / "sdist", "sdist")) as packed:
        assert not [member.name for member in packed.getmembers() if member.issym()]
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(build(unpacked, tmp_path / "again")) as archive:
        assert set(archive.namelist()) == inside
