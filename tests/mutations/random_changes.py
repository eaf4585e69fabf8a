"""Small changes of any code: cosmic-ray's operators, and what privacy asks for beside them.

cosmic-ray exchanges operators, comparisons, conditions and numbers, takes decorators away and keeps
loops from running. Beside it stand changes that it has not: rounding turned round, factors of two,
branches exchanged, statements left out, and refusals that do not come.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from random import Random
from typing import Final

SEED: Final = 18

_OF_CLASSES: Final = frozenset({"property", "cached_property", "staticmethod", "abstractmethod"})
# They have to be told which names.
_TOLD_NAMES: Final = frozenset({"core/VariableReplacer", "core/VariableInserter"})
_KIN: Final = (
    {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"},
    {"LShift", "RShift", "BitAnd", "BitOr", "BitXor"},
    {"Is", "IsNot"},
    {"Not"},
)
_NAMES: Mapping[str, str] = {
    "ceil": "floor",
    "floor": "ceil",
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "next_minus": "next_plus",
    "next_plus": "next_minus",
    "any": "all",
    "all": "any",
    "ROUND_FLOOR": "ROUND_CEILING",
    "ROUND_CEILING": "ROUND_FLOOR",
    "inf": "pi",
}

Change = Callable[[], str | None]
"""Makes the whole source with a change, which need not be code; None if there is none."""
Place = tuple[int, int]
"""A line, from 1 on, and a column, from 0 on."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutated module.

    Attributes:
        module: its path from the root of the repository.
        line: of the change.
        was: the changed lines, in one.
        now: what they have become.
        source: of the whole module.
    """

    module: str
    line: int
    was: str
    now: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}  {self.was}  ->  {self.now}"


def sampled(module: str, source: str, count: int, seed: int = SEED) -> list[Mutant]:
    """So many mutants of a module, or all that there is a place for; the same as long as it is.

    Fewer of them are the first of more, in the order in which they are drawn.

    A place is drawn first, and then one of its changes: an operator, for which cosmic-ray has a
    dozen others, counts no more than a statement that can only be left out.
    """
    random = Random(f"{seed} {module}")
    changes = changes_of(source)
    places = sorted(changes)
    random.shuffle(places)
    found: list[Mutant] = []
    for place in places:
        if len(found) == count:
            break
        at_place = changes[place]
        random.shuffle(at_place)
        mutants = (mutant_of(module, source, change()) for change in at_place)
        found += list(islice((each for each in mutants if each is not None), 1))
    return sorted(found, key=lambda mutant: mutant.line)


def changes_of(source: str) -> dict[Place, list[Change]]:
    """All changes, by where they are."""
    found: defaultdict[Place, list[Change]] = defaultdict(list)
    for place, change in (*_of_cosmic_ray(source), *_of_our_own(source)):
        found[place].append(change)
    return dict(found)


def mutant_of(module: str, source: str, changed: str | None) -> Mutant | None:
    """None if it is no code, or differs in texts, types, or what is raised alone.

    So is what makes properties and dataclasses: without it nothing that uses them works, or all.
    """
    if changed is None or _meaning(changed) in (None, _meaning(source)):
        return None
    before, after = source.splitlines(), changed.splitlines()
    shorter = min(len(before), len(after))
    first = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    rest = range(shorter - first)
    last = next((i for i in rest if before[-1 - i] != after[-1 - i]), len(rest))
    was, now = (_in_one(lines[first : len(lines) - last]) for lines in (before, after))
    return Mutant(module, first + 1, was, now, changed)


def _in_one(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def _of_cosmic_ray(source: str) -> Iterator[tuple[Place, Change]]:
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(source)))
    for name in operator_names():
        if not _is_of_use(name):
            continue
        operator = get_operator(name)()
        begins = (begin for node in nodes for begin, _ in operator.mutation_positions(node))
        for occurrence, begin in enumerate(begins):
            yield begin, partial(mutate_code, source, operator, occurrence)


def _is_of_use(operator: str) -> bool:
    """Those are not that have to be told names, or bring what is hardly ever of the right type.

    Whatever fails with a `TypeError` is noticed by any test, which says nothing.
    """
    if operator in _TOLD_NAMES:
        return False
    _, _, exchanged = operator.rpartition("Operator_")
    was, _, now = exchanged.partition("_")
    return all((was in kin) == (now in kin) for kin in _KIN) or was == "Delete"


def _of_our_own(source: str) -> Iterator[tuple[Place, Change]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.expr | ast.stmt):
            texts = _of_expression(node) if isinstance(node, ast.expr) else _of_statement(node)
            for text in texts:
                yield (node.lineno, node.col_offset), partial(_replaced, source, node, text)


def _replaced(source: str, node: ast.expr | ast.stmt, replacement: str) -> str:
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    last = lines[node.end_lineno - 1][node.end_col_offset :]
    return (before + replacement.encode() + last + b"".join(lines[node.end_lineno :])).decode()


def _of_expression(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield _written(ast.IfExp(test, orelse, body))
        case ast.Constant(value=float() as value):
            yield from (repr(value * 2), repr(value / 2))
        case ast.Name(id=name) if name in _NAMES:
            yield _NAMES[name]
        case ast.Attribute(value=value, attr=name) if name in _NAMES:
            yield f"{ast.unparse(value)}.{_NAMES[name]}"


def _of_statement(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Expr(value=ast.Call() | ast.YieldFrom() | ast.Yield()) | ast.AugAssign():
            yield "pass"
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "pass"
        case ast.If(test=test, body=[ast.Raise() | ast.Return() | ast.Continue()], orelse=[]):
            # A refusal or an early end that does not come.
            yield f"if False and ({ast.unparse(test)}):\n{_indented(node)}"


def _indented(node: ast.If) -> str:
    indent = " " * (node.col_offset + 4)
    return indent + ast.unparse(node.body[0]).replace("\n", f"\n{indent}")


def _written(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def _meaning(source: str) -> str | None:
    try:
        return ast.dump(_Meaning().visit(ast.parse(source)))
    except SyntaxError:
        return None


class _Meaning(ast.NodeTransformer):
    """Leaves out what says something to people and to type checkers, and what makes classes."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = []
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.decorator_list = [
            each for each in node.decorator_list if ast.unparse(each) not in _OF_CLASSES
        ]
        if node.name in {"__str__", "__repr__"}:
            node.body = [ast.Pass()]
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise()

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Pass()
