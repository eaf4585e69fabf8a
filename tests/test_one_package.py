"""All modules are imported only as `dpstream...`, without conflicts with other packages."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import sys
import sysconfig
import tarfile
import tokenize
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.built_wheel import build, copy_sources
from tests.support.sources import FOLDERS, ROOT, texts

_ONE = "|".join(FOLDERS)
_DOTTED = re.compile(rf"(?<![\w./$-])({_ONE})\.([A-Za-z_]\w*)(?![\w=])")
_IMPORT = re.compile(
    rf"(?<![\w./-])(?:from ({_ONE})(?= import |\.)|import ({_ONE})\b(?=[.;\n\"']|$)|-m ({_ONE})\b)"
)
# In JavaScript a dotted name is an attribute.
_NO_MODULES = (".css", ".js", ".mjs", ".ts")


def modules() -> set[str]:
    """Return the first two parts of module names, such as ``pipeline.cli``."""
    return {
        f"{folder}.{path.stem}"
        for folder in FOLDERS
        for path in (ROOT / folder).iterdir()
        if path.suffix in ("", ".py") and path.name != "__pycache__"
    }


def bare(text: str, known: set[str]) -> Iterator[str]:
    """Yield module names in a text that lack the prefix ``dpstream``."""
    for found in _DOTTED.finditer(text):
        if f"{found[1]}.{found[2]}" in known:
            yield found[0]
    yield from (found[0] for found in _IMPORT.finditer(text))


def literals(code: str) -> Iterator[str]:
    """Yield strings, literal parts of f-strings, and comments of a module."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in kinds:
            yield re.sub(r"\{[^{}]*\}", "{}", token.string)


@pytest.mark.parametrize("folder", FOLDERS)
def test_package_is_a_folder_of_symbolic_links(folder: str) -> None:
    link = ROOT / "dpstream" / folder
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder


def test_texts_use_full_module_names() -> None:
    """Ruff checks import statements, but not imports by strings."""
    known = modules()
    found = {}
    for path, text in texts().items():
        if path.endswith(_NO_MODULES) or path == Path(__file__).relative_to(ROOT).as_posix():
            continue
        names = list(bare(text, known))
        if names and path.endswith(".py"):
            names = [name for literal in literals(text) for name in bare(literal, known)]
        if names:
            found[path] = names
    assert found == {}


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


def wheel_of_others(folder: Path) -> Path:
    """Build a distribution whose packages have the names of folders of this repository."""
    files = {
        **{f"{name}/__init__.py": f"WHOSE = 'others: {name}'\n" for name in FOLDERS},
        "pipeline/cli/__init__.py": "def main():\n    raise SystemExit('others')\n",
        "others-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: others\nVersion: 1\n",
        "others-1.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        record += f"{name},sha256={digest.rstrip('=')},{len(text)}\n"
    path = folder / "others-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("others-1.dist-info/RECORD", f"{record}others-1.dist-info/RECORD,,\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("first", ["dpstream", pytest.param("others", marks=pytest.mark.verify)])
def test_packages_with_the_same_names_do_not_conflict(tmp_path: Path, first: str) -> None:
    wheels = {
        "dpstream": build(copy_sources(tmp_path / "sources"), tmp_path / "wheel"),
        "others": wheel_of_others(tmp_path),
    }
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    # Libraries of the tests are used, but their .pth files are ignored, so that the current
    # sources are not found.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def pip(*arguments: str) -> None:
        quiet = ["--quiet", "--disable-pip-version-check", "--python", str(python)]
        subprocess.run([sys.executable, "-m", "pip", *quiet, *arguments], check=True)

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def check_our_command() -> None:
        assert run(str(environment / "bin" / "dpstream"), "--version").startswith("dpstream ")
        names = ", ".join(f"dpstream.{folder}" for folder in FOLDERS)
        run(str(python), "-c", f"import {names}, dpstream.pipeline.cli.commands")

    for name in sorted(wheels, key=lambda name: name != first):
        pip("install", "--no-deps", "--no-index", "--no-compile", str(wheels[name]))
    check_our_command()
    whose = "import topics, pipeline; print(topics.WHOSE, pipeline.WHOSE)"
    assert run(str(python), "-c", whose) == "others: topics others: pipeline\n"
    pip("uninstall", "--yes", "others")
    check_our_command()
    assert not (packages / "pipeline").exists()
