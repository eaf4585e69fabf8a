"""Docstrings and comments of the product are plain English: no banned wording, no question first.

A line that needs a banned word ends with ``prose: ok``. Examples and what they print are exempt.
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
    r"|\b(is|are) (none|nobody|no more)\b|\bof no (use|range|size|value)\b"
    r"|\bso (many|long|much|often)\b(?! (that|as)\b)"
    r"|\banew\b|\bby and by\b|\bworked out\b|\ball the same\b|\bdone with\b|\bat present\b"
    r"|\bgo(es)? on\b|\blook(s|ed|ing)? back\b|\bbeside\b|\bbut for\b"
    r"|\brest(s|ing|ed)? on\b|\bput together\b|\badds? up\b"
    r"|\bneeds? a person\b|\ball is well\b",
    re.IGNORECASE,
)
FIRST = re.compile(
    r"(What|How|Whether|Of|Who|Whose|Whom|Where|When|Which|Why|For|As|By|That|Those|From|So|Nothing"
    r"|Whoever)\b"
)
EXAMPLE = re.compile(r"^\s*>>> .*?(?:\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and texts of docstrings, also of attributes, and of comments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def findings(source: str) -> Iterator[str]:
    for start, text in prose(source):
        if first := FIRST.match(text):
            yield f"{start}: begins with {first.group()!r}"
        without = EXAMPLE.sub(lambda example: "\n" * example.group().count("\n"), text)
        for number, line in enumerate(without.split("\n"), start):
            if (banned := BANNED.search(line)) and "prose: ok" not in line:
                yield f"{number}: {banned.group()!r} in: {line.strip()}"


def test_banned_wording_is_detected() -> None:
    source = '"""What it is."""\nX = 1\n"""Bytes of so many."""  # nobody\n'
    assert len(list(findings(source))) == 3
    assert not list(findings('"""Say.\n\n>>> "nobody"\n\'nobody\'\n"""\n# nobody prose: ok\n'))


def test_product_has_no_banned_wording() -> None:
    found = [
        f"{path}:{finding}"
        for path, source in texts().items()
        if path.startswith((*(f"{each}/" for each in FOLDERS), "experiments/", "docker/"))
        and path.endswith(".py")
        for finding in findings(source)
    ]
    assert found == []
