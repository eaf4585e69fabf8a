"""The threat model mentions an existing test for every promise."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "THREATS.md").read_text()
NAMED = re.compile(r"\[`(test_\w+)`\]\((tests/[\w/]+\.py)\)")


@cache
def functions(path: str) -> dict[str, set[str]]:
    return {
        node.name: {ast.unparse(each) for each in node.decorator_list}
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def promises() -> list[str]:
    section = TEXT.partition("\n## Promises\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [row for row in rows if not row.startswith(("| promise |", "|---"))]


def test_tests_named_in_threats_exist_and_are_not_skipped() -> None:
    named = NAMED.findall(TEXT)
    assert len(named) > 30
    for name, path in named:
        assert name in functions(path), f"{path} has no {name}"
        assert not any("skip" in mark or "xfail" in mark for mark in functions(path)[name])


def test_every_promise_mentions_a_test() -> None:
    assert len(promises()) > 20
    for row in promises():
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 3, row
        assert all(cells), row
        assert NAMED.search(cells[2]), f"no test shows: {cells[0]}"


def test_every_test_name_in_threats_links_to_its_file() -> None:
    """Otherwise misspelled names would be skipped."""
    assert len(re.findall(r"test_\w+`", TEXT)) == len(NAMED.findall(TEXT))
