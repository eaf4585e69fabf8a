"""Random mutants are changes of code, each another one, and the same whenever they are drawn."""

from __future__ import annotations

import ast
import re

import pytest

from pipeline.protocols.registry import PROTOCOLS
from tests.conformance.promises import parts
from tests.mutations.random_changes import Mutant, changes_of, mutant_of, sampled
from tests.mutations.random_mutants import (
    PROMISES,
    ROOT,
    Run,
    chosen_for,
    function_around,
    name_of,
    quickest,
    targets,
)

SOURCE = '''
"""Text with 1 < 2."""

LEAST: int = 3


def half(value: int = 4, text: str = "a < b") -> int:
    """Text."""
    if value < LEAST:
        raise ValueError(f"{value + 1}")
    done = not text
    print(value, copy=False)
    return value // 2 if done and value else -1


@dataclass(frozen=True, slots=True)
class Held:
    """Text."""

    held: object

    @property
    def seen(self) -> object:
        return self.held
'''


CHANGED = {
    (4, "LEAST: int = 2"),
    (4, "LEAST: int = 4"),
    (7, 'def half(value: int = 3, text: str = "a < b") -> int:'),
    (7, 'def half(value: int = 5, text: str = "a < b") -> int:'),
    (9, "if False and (value < LEAST): raise ValueError(f'{value + 1}')"),
    (9, "if not value < LEAST:"),
    *((9, f"if value {other} LEAST:") for other in ("!=", "<=", "==", ">", ">=")),
    (11, "done = text"),
    (12, "pass"),
    (12, "print(value, copy=True)"),
    (13, "return (-1 if done and value else value // 2)"),
    *((13, f"return value {by} 2 if done and value else -1") for by in ("%", "*", "**")),
    *((13, f"return value {by} 2 if done and value else -1") for by in ("+", "-", "/")),
    (13, "return value // 1 if done and value else -1"),
    (13, "return value // 3 if done and value else -1"),
    *((13, f"return value // 2 if done and value else {other}") for other in ("+1", "~1", "1")),
    *((13, f"return value // 2 if done and value else - {other}") for other in (0, 2)),
    (13, "return value // 2 if done or value else -1"),
    (13, "return value // 2 if not done and value else -1"),
}


def every_mutant() -> list[Mutant]:
    pytest.importorskip("cosmic_ray", reason="random mutants need cosmic-ray")
    changes = [change for each in changes_of(SOURCE).values() for change in each]
    mutants = [mutant_of("a.py", SOURCE, change()) for change in changes]
    return [mutant for mutant in mutants if mutant is not None]


def test_changes_are_of_code_alone() -> None:
    made = {(mutant.line, mutant.now) for mutant in every_mutant()}
    assert made == CHANGED


def test_every_mutant_is_another_text_that_is_code() -> None:
    for mutant in every_mutant():
        ast.parse(mutant.source)
        assert mutant.source != SOURCE


def test_a_sample_is_the_same_every_time_and_of_one_change_at_a_place() -> None:
    every = {mutant.source for mutant in every_mutant()}
    few, all_there_are = (sampled("a.py", SOURCE, count) for count in (5, 1_000))
    assert few == sampled("a.py", SOURCE, 5) != sampled("b.py", SOURCE, 5)
    assert {each.source for each in few} < {each.source for each in all_there_are} < every
    assert sampled("a.py", SOURCE, 5, seed=1) != few


def test_the_quickest_tests_are_run_and_one_in_any_case() -> None:
    assert quickest({"a": 5.0, "b": 1.0, "c": 2.0, "d": 90.0}) == {"b": 1.0, "c": 2.0, "a": 5.0}
    assert quickest({"d": 90.0}) == {"d": 90.0}


def test_who_enters_what_is_changed_is_run_first_and_then_a_few_others() -> None:
    seconds = {"other": 1.0, "slow": 3.0, "quick": 2.0, "long": 90.0}
    entered = {"other": [], "slow": ["a.py:7", "a.py:1"], "quick": ["a.py:7"], "long": ["a.py:7"]}
    whole = Run(seconds, entered)
    assert list(chosen_for("a.py:7", whole)) == ["quick", "slow", "other"]
    assert list(chosen_for("a.py:8", whole)) == list(chosen_for(None, whole))
    assert list(chosen_for(None, whole)) == ["other", "quick", "slow"]


def test_a_change_is_in_the_innermost_function_whose_body_it_is_in() -> None:
    source = "\n".join(
        (
            "@cache",  # 1
            "def outer(value=1):",
            "    def inner(other=2):",
            "        return other",
            "    return inner",  # 5
            "class Other:",
            "    value = 3",
            "    async def later(self):",
            "        return 4",
        )
    )
    found = [function_around(source, line) for line in range(1, 10)]
    assert found == [None, None, 1, 3, 1, None, None, None, 8]


def _can_be_changed(source: str) -> bool:
    """Whether there is more in a module than texts, imports, and classes with names alone."""
    nodes = list(ast.walk(ast.parse(source)))
    numbers = (each.value for each in nodes if isinstance(each, ast.Constant))
    return any(not isinstance(each, str) for each in numbers) or any(
        isinstance(each, ast.FunctionDef | ast.Compare | ast.BinOp) for each in nodes
    )


def test_every_module_is_a_target_and_its_tests_are_there() -> None:
    named = [module for target in targets() for module in target.modules]
    assert len(named) == len(set(named))
    modules = {
        str(path.relative_to(ROOT))
        for package in ("randomizers", "pipeline/stages")
        for path in (ROOT / package).rglob("*.py")
        if "node_modules" not in path.parts and _can_be_changed(path.read_text())
    }
    assert modules <= set(named)
    tests = {test for target in targets() for test in target.tests}
    assert {PROMISES.format(part) for part in parts()} <= tests
    for test in tests:
        path, _, name = test.partition("::")
        name, _, protocol = name.partition("[")
        assert (ROOT / path).exists()
        assert not name or f"def {name}" in (ROOT / path).read_text(), test
        about = re.sub(r"(-\d+)?\]$", "", protocol)
        examples = {name_of(module) for module in named} if name == "test_examples" else set()
        assert about in examples | {"", *PROTOCOLS}
