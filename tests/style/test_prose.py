"""Texts of the product use no banned wording and the terms of the glossary.

Docstrings do not start with a question word. A line that needs a banned word ends with
``prose: ok``. In docstrings, examples and their output are exempt.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.support.sources import FOLDERS, texts

BANNED = re.compile(
    r"\b(whoever|whomever|nobody|somebody|anybody)\b"
    r"|\b(is|are|was|were|be|been) (seen|found|told|said) to\b"
    r"|\b(is|are|was|were) told\b"
    r"|\b(is|are) (?-i:none|nobody|no more)\b|\bof no (use|range|size|value)\b"
    r"|\bso (many|long|much|often)\b(?! (that|as)\b)"
    r"|\banew\b|\bby and by\b|\bworked out\b|\ball the same\b|\bdone with\b|\bat present\b"
    r"|\bgo(es)? on\b|\blook(s|ed|ing)? back\b|\bbeside\b|\bbut for\b"
    r"|\brest(s|ing|ed)? on\b|\bput together\b|\badds? up\b"
    r"|\bneeds? a person\b|\ball is well\b",
    re.IGNORECASE,
)
OLD_TERMS = re.compile(
    r"\b(withheld|fate|owed|adder|resting|lifeline|misfits?|strangers?)\b",
    re.IGNORECASE,
)
"""Words that the glossary replaces. `typos` also rejects British spellings."""
FIRST = re.compile(
    r"(What|How|Whether|Of|Who|Whose|Whom|Where|When|Which|Why|For|As|By|That|Those|From|So|Nothing"
    r"|Whoever)\b"
)
EXAMPLE = re.compile(r"^\s*>>> .*?(?:\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
PRODUCT = tuple(f"{folder}/" for folder in (*FOLDERS, "experiments", "docker"))
PAGES = {"README.md", "PRIVACY.md", "SECURITY.md", "THREATS.md"}
OTHER_TEXTS = (".html", ".js", ".md", ".yaml", ".yml")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and texts of docstrings, attribute docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and texts of all other strings, with {} for every placeholder."""
    tree = ast.parse(source)
    inner = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr | ast.JoinedStr)
        for child in ast.iter_child_nodes(node)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in inner:
                yield node.lineno, text
            case ast.JoinedStr(values=values):
                texts = (part.value if isinstance(part, ast.Constant) else "{}" for part in values)
                yield node.lineno, "".join(map(str, texts))


def findings(source: str) -> Iterator[str]:
    """Yield the findings in Python code, with line numbers."""
    for start, text in docstrings(source):
        if first := FIRST.match(text):
            yield f"{start}: begins with {first.group()!r}"
        without = EXAMPLE.sub(lambda example: "\n" * example.group().count("\n"), text)
        yield from banned(without, start)
    for start, text in messages(source):
        yield from banned(text, start)


def banned(text: str, start: int = 1) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start):
        if (wrong := BANNED.search(line)) and "prose: ok" not in line:
            yield f"{number}: {wrong.group()!r} in: {line.strip()}"


def test_banned_wording_is_detected() -> None:
    source = '"""What it is."""\nX = 1\n"""Bytes of so many."""  # nobody\n'
    assert len(list(findings(source))) == 3
    assert not list(findings('"""Say.\n\n>>> "nobody"\n\'nobody\'\n"""\n# nobody prose: ok\n'))


def test_banned_wording_is_detected_across_lines_of_a_message() -> None:
    (found,) = findings('f"{1} records of which the {x} is "\\\n    "none"\n')
    assert found.startswith("1: 'is none'")
    assert len(list(findings('print("the state is "\n    "none")\n'))) == 1
    assert not list(findings('print(f"{1 if x is None else 2} devices")\n'))


def product() -> dict[str, str]:
    return {
        path: text
        for path, text in texts().items()
        if path.startswith(PRODUCT) or path in PAGES
        if path.endswith((".py", *OTHER_TEXTS))
    }


def test_product_has_no_banned_wording() -> None:
    found = [
        f"{path}:{finding}"
        for path, text in product().items()
        for finding in (findings if path.endswith(".py") else banned)(text)
    ]
    assert found == []


def test_product_uses_terms_of_the_glossary() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in product().items()
        for number, line in enumerate(text.split("\n"), 1)
        if OLD_TERMS.search(line)
    ]
    assert found == []
