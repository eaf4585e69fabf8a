"""Delete optional parts (leaves), and verify that everything else works without them.

::

    python -m tests.support.leaves                      lists the leaves with their commands
    python -m tests.support.leaves delete recording     deletes one from this work tree
    python -m tests.support.leaves verify [LEAF ...]    checks the rest of each, in a copy

A leaf is a folder of `pipeline` listed in the contract in pyproject.toml. Deleting a leaf also
deletes its tests, the leaves that the contract declares as dependents, and all modules of the
shell, the experiments and the tests that import a deleted module. No list is maintained by hand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpstream.pipeline.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGES = ("aggregators", "pipeline", "randomizers", "topics")
SHELL = ("pipeline/cli/", "pipeline/demo/", "pipeline/connect.py", "experiments/", "tests/")
CONTRACT = "Leaves import only the leaves listed here"
# Fast tests of the core only.
SHORT_TESTS = (
    "tests/pipeline/test_memory_job.py",
    "tests/pipeline/cli/test_cli.py",
    "tests/pipeline/stages/test_windows.py",
    "tests/pipeline/values/test_durations.py",
    "tests/topics/test_round_trips.py",
)
# Also matches imports in program strings. A regular expression is far faster than parsing.
IMPORTS = re.compile(r"^ *(?:from ([\w.]+) )?import (\([^)]*\)|.*)", re.MULTILINE)
IMPORT_ALL = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


class NotALeafError(Exception):
    """The core or another leaf imports code that would be deleted."""


@dataclass(frozen=True)
class Tree:
    root: Path

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Existing files known to git, relative to the root."""
        said = subprocess.run(
            ["git", "ls-files", "-z"], cwd=self.root, capture_output=True, check=True, text=True
        ).stdout
        return tuple(name for name in said.split("\0") if name and (self.root / name).exists())

    @cached_property
    def modules(self) -> dict[str, str]:
        return {
            module_name(name): name
            for name in self.files
            if name.endswith(".py") and not (self.root / name).is_symlink()
        }

    @cached_property
    def imports(self) -> dict[str, frozenset[str]]:
        """Files that each file imports, in modules or functions."""
        return {
            name: frozenset(self._imported((self.root / name).read_text(encoding="utf-8")))
            for name in self.modules.values()
        }

    def _imported(self, source: str) -> Iterator[str]:
        for package, names in IMPORTS.findall(source):
            for name in re.findall(r"[\w.]+", names):
                # A name imported from a package is not always a module.
                whole = f"{package}.{name}" if package else name
                found = self.modules.get(whole) or self.modules.get(package)
                if found is not None:
                    yield found

    @cached_property
    def needs(self) -> dict[str, frozenset[str]]:
        """By leaf, the leaves that the contract allows it to import."""
        return needs_in((self.root / "pyproject.toml").read_text(encoding="utf-8"))

    def with_dependents(self, leaves: Iterable[str]) -> set[str]:
        gone: set[str] = set()
        more = set(leaves)
        while more:
            gone |= more
            more = {name for name, needed in self.needs.items() if needed & gone} - gone
        return gone

    def going_with(self, leaves: Iterable[str]) -> list[str]:
        gone = self.with_dependents(leaves)
        folders = tuple(f"{root}pipeline/{leaf}/" for leaf in gone for root in ("", "tests/"))
        going = {name for name in self.files if name.startswith(folders)}
        while more := {name for name, found in self.imports.items() if found & going} - going:
            inner = sorted(name for name in more if not name.startswith(SHELL))
            if inner:
                raise NotALeafError(f"{inner[0]} imports modules of {', '.join(sorted(gone))}")
            going |= more
        return sorted(going)

    def delete(self, leaves: Iterable[str]) -> list[str]:
        gone = self.going_with(leaves)
        names = self.with_dependents(leaves)
        project = self.root / "pyproject.toml"
        project.write_text(without(project.read_text(encoding="utf-8"), names), encoding="utf-8")
        for name in gone:
            (self.root / name).unlink()
        return gone


def module_name(file: str) -> str:
    """Return a file's module name: ``dpstream.pipeline.x`` for ``pipeline/x.py``."""
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(["dpstream", *parts] if parts[0] in PACKAGES else parts)


def needs_in(project: str) -> dict[str, frozenset[str]]:
    contracts = tomllib.loads(project)["tool"]["importlinter"]["contracts"]
    contract = next(each for each in contracts if each["name"] == CONTRACT)
    edges = [re.findall(r"pipeline\.(\w+)", line) for line in contract["ignore_imports"]]
    leaves = [name.rpartition(".")[2] for name in contract["modules"]]
    return {leaf: frozenset(to for of, to in edges if of == leaf) for leaf in leaves}


def without(project: str, leaves: Iterable[str]) -> str:
    """Return a pyproject.toml without the lines about these leaves."""
    named = re.compile(rf"dpstream\.pipeline\.({'|'.join(leaves)})\b")
    return "".join(line for line in project.splitlines(keepends=True) if not named.search(line))


def leaves_reached(tree: Tree) -> dict[str, set[str]]:
    """Return the leaves that each command module imports, directly or indirectly."""

    def reached(name: str, seen: set[str]) -> Iterator[str]:
        seen.add(name)
        for each in tree.imports[name]:
            package, _, rest = each.removeprefix("pipeline/").partition("/")
            if rest and each.startswith("pipeline/") and package in tree.needs:
                yield package
            elif each.startswith("pipeline/cli/") and each not in seen:
                yield from reached(each, seen)

    modules = (name for name in tree.modules.values() if name.startswith("pipeline/cli/"))
    return {name: set(reached(name, set())) for name in modules}


def commands_of(tree: Tree) -> dict[str, list[str]]:
    reached = leaves_reached(tree)
    return {
        leaf: [
            command
            for command, each in COMMANDS.items()
            if leaf in reached[f"pipeline/cli/{each.module}.py"]
        ]
        for leaf in tree.needs
    }


def verify(tree: Tree, leaf: str, folder: Path, cache: Path) -> bool:
    """Delete a leaf from a copy, check the copy, and print every failure."""
    for name in tree.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # Keep modification times, by which mypy detects unchanged files.
        shutil.copy2(tree.root / name, folder / name, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "add", "--all", "--force"], cwd=folder, check=True)
    gone = Tree(folder).delete([leaf])
    modules = [name for name in Tree(folder).modules if name.startswith("dpstream")]
    print(f"{leaf}: without {len(gone)} files, {len(modules)} modules remain", flush=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:dpstream", "-p", "no:cacheprovider"]
    commands = (
        [tool("ruff"), "check", "--quiet"],
        [tool("ruff"), "format", "--check", "--quiet"],
        [tool("lint-imports"), "--no-cache"],
        [sys.executable, "-c", IMPORT_ALL, *modules],
        [tool("mypy"), "--cache-dir", str(cache)],
        [sys.executable, "-m", "dpstream.pipeline.cli", "--help"],
        [*pytest, "-m", "not slow and not verify", *SHORT_TESTS],
    )
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    for command in commands:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            print(
                f"{leaf}: {' '.join(command)[:80]} fails:\n{done.stdout}{done.stderr}", flush=True
            )
            return False
    return True


def verify_all(tree: Tree, leaves: Sequence[str]) -> None:
    """Verify leaves one at a time, and exit with 1 if anything depends on one."""
    with tempfile.TemporaryDirectory(prefix="leaves-") as folder:
        cache = Path(folder, "mypy")
        if (ROOT / ".mypy_cache").exists():
            shutil.copytree(ROOT / ".mypy_cache", cache)
        failed = []
        for leaf in leaves:
            if not verify(tree, leaf, Path(folder, leaf), cache):
                failed.append(leaf)
            shutil.rmtree(Path(folder, leaf))
    if failed:
        sys.exit(f"these leaves have other importers: {', '.join(failed)}")


def tool(name: str) -> str:
    """Return the path of a program in the current environment."""
    return str(Path(sys.executable).with_name(name))


def main(arguments: Sequence[str]) -> None:
    tree = Tree(ROOT)
    leaves = arguments[1:]
    unknown = set(leaves) - tree.needs.keys()
    if unknown:
        sys.exit(f"{', '.join(unknown)}: expected one of: {', '.join(tree.needs)}")
    match arguments:
        case []:
            for leaf, commands in commands_of(tree).items():
                dependents = ", ".join(sorted(tree.with_dependents([leaf]) - {leaf}))
                print(f"{leaf:<12} commands: {', '.join(commands) or 'none'}", end="")
                print(f"; needed by {dependents}" if dependents else "")
        case ["delete", _, *_]:
            print(f"{len(tree.delete(leaves))} files deleted; see 'git status'")
        case ["verify", *_]:
            verify_all(tree, leaves or list(tree.needs))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
