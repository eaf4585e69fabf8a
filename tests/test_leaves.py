"""Deleting a leaf also deletes its commands, tests and dependents, and the core needs none."""

from __future__ import annotations

import tomllib

import pytest

from dpstream.pipeline.cli.commands import COMMANDS
from dpstream.pipeline.protocols.registry import OWN, module_of
from tests.support.leaves import (
    ROOT,
    NotALeafError,
    Tree,
    commands_of,
    leaves_reached,
    needs_in,
    without,
)

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LINTED = tomllib.loads(PROJECT)["tool"]["importlinter"]
# Commands without a leaf, with which jobs still run and can be queried.
COMMANDS_OF_THE_CORE = {"estimates", "kafka", "keygen", "list", "produce", "query"}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


def test_leaf_packages_are_exactly_the_optional_layers(tree: Tree) -> None:
    rings = next(each for each in LINTED["contracts"] if each["name"].startswith("Rings"))
    line = next(line for line in rings["layers"] if ":" in line)
    assert {name.strip(" ()") for name in line.split(":")} == tree.needs.keys()


def test_deleting_an_optional_layer_deletes_its_commands_and_tests(tree: Tree) -> None:
    gone = tree.going_with(["recording"])
    assert {
        "pipeline/recording/README.md",
        "pipeline/cli/record.py",
        "pipeline/cli/replay.py",
        "pipeline/cli/diff.py",
        "tests/pipeline/recording/test_replay.py",
        "tests/support/replays.py",
    } <= set(gone)
    others = [name for name in gone if name.startswith("pipeline/")]
    assert all(name.startswith(("pipeline/recording/", "pipeline/cli/")) for name in others)


def test_deleting_an_optional_layer_deletes_the_layers_that_depend_on_it(tree: Tree) -> None:
    assert tree.with_dependents(["conformance"]) == {"audit", "conformance"}
    assert "pipeline/audit/audits.py" in tree.going_with(["conformance"])


@pytest.mark.parametrize(
    "importer", ["pipeline/stages/stage.py", "pipeline/planning/job_plan.py", "topics/names.py"]
)
def test_optional_layer_imported_by_a_core_module_is_not_deleted(importer: str) -> None:
    tree = Tree(ROOT)
    tree.imports[importer] |= {"pipeline/recording/recorder.py"}
    with pytest.raises(NotALeafError, match=importer):
        tree.going_with(["recording"])


def test_conftest_modules_import_no_optional_layer(tree: Tree) -> None:
    gone = tree.going_with(tree.needs)
    # Only the live page, a leaf, has a conftest that depends on it.
    assert [name for name in gone if name.endswith("conftest.py")] == ["tests/browser/conftest.py"]


def test_command_module_imports_at_most_one_optional_layer(tree: Tree) -> None:
    reached = leaves_reached(tree)
    assert {name: leaves for name, leaves in reached.items() if len(leaves) > 1} == {}


def test_core_commands_import_no_optional_layer(tree: Tree) -> None:
    of_leaves = {command for commands in commands_of(tree).values() for command in commands}
    assert COMMANDS.keys() - of_leaves == COMMANDS_OF_THE_CORE


def test_project_file_omits_deleted_layers() -> None:
    rest = without(PROJECT, ["conformance", "audit"])
    assert needs_in(rest).keys() == needs_in(PROJECT).keys() - {"conformance", "audit"}
    assert (
        "pytest11" not in tomllib.loads(rest)["project"]["entry-points"]
        or not (tomllib.loads(rest)["project"]["entry-points"]["pytest11"])
    )


def test_import_contracts_name_every_protocol() -> None:
    listed = {name for each in LINTED["contracts"] for name in each.get("modules", ())}
    assert {f"dpstream.pipeline.protocols.{module_of(name)}" for name in OWN} <= listed
    folders = {path.parent.name for path in (ROOT / "randomizers").glob("*/calibration.py")}
    assert {f"dpstream.randomizers.{name}" for name in folders - {"accounting"}} <= listed
