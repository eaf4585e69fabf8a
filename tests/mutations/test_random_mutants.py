"""Random mutants are changes of code, each another one, and the same whenever they are drawn."""

from __future__ import annotations

import ast
import tomllib

from tests.mutations.random_mutants import ROOT, TARGETS, mutants_of, sampled

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
'''


def test_changes_are_of_code_alone() -> None:
    made = {(mutant.was, mutant.now) for mutant in mutants_of("a.py", SOURCE)}
    assert made == {
        ("3", "4"),
        ("3", "2"),
        ("4", "5"),
        ("4", "3"),
        ("value < LEAST", "(value <= LEAST)"),
        ("value < LEAST", "(value >= LEAST)"),
        (
            'if value < LEAST: raise ValueError(f"{value + 1}")',
            "if False and (value < LEAST): raise ValueError(f'{value + 1}')",
        ),
        ("not text", "(text)"),
        ("print(value, copy=False)", "pass"),
        ("value // 2", "(value * 2)"),
        ("2", "3"),
        ("2", "1"),
        ("done and value", "(done or value)"),
        ("value // 2 if done and value else -1", "(-1 if done and value else value // 2)"),
        ("-1", "(1)"),
        ("1", "2"),
        ("1", "0"),
    }


def test_every_mutant_is_another_text_that_is_code() -> None:
    mutants = mutants_of("a.py", SOURCE)
    assert len({SOURCE, *(mutant.source for mutant in mutants)}) == len(mutants) + 1
    for mutant in mutants:
        ast.parse(mutant.source)


def test_a_sample_is_the_same_every_time() -> None:
    assert sampled("a.py", SOURCE, 5) == sampled("a.py", SOURCE, 5) != sampled("b.py", SOURCE, 5)
    assert len(sampled("a.py", SOURCE, 1_000)) == len(mutants_of("a.py", SOURCE))


def test_targets_and_their_tests_are_there() -> None:
    for module, tests in tomllib.loads(TARGETS.read_text()).items():
        assert (ROOT / module).is_file()
        for test in tests:
            path, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / path).read_text(), test
