"""Mutants at random: small changes of any code, made by operators on its syntax tree.

    python -m tests.mutations.random_mutants [--sample N] [MODULE ...]

Comparisons, numbers, conditions and arithmetic are changed, statements left out, and rounding is
turned round. Of all that can be done to a module a sample is drawn with a fixed seed. Each mutant
lives in memory, in a forked process that runs the tests of its module, and those beside it that
look at the same from outside. Whoever is not noticed is printed; `survivors.md` says of each why it
weakens no privacy.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TARGETS: Final = Path(__file__).parent / "random_targets.toml"
SAMPLE: Final = 8
"""Mutants of a module, unless more are asked for."""
SEED: Final = 18
SECONDS: Final = 400

_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
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


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutated module.

    Attributes:
        module: its path from the root of the repository.
        line: of the change.
        column: where it begins, from 1 on.
        was: the changed part, in one line.
        now: what it has become.
        source: of the whole module.
    """

    module: str
    line: int
    column: int
    was: str
    now: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}:{self.column}  {self.was}  ->  {self.now}"


def mutants_of(module: str, source: str) -> list[Mutant]:
    """All mutants of a module that differ from it and from each other, in order."""
    tree = ast.parse(source)
    found: dict[str, Mutant] = {}
    for node, replacement in _changes(tree):
        was = ast.get_source_segment(source, node)
        assert was is not None
        mutated = _replaced(source, node, replacement)
        try:
            same = ast.dump(ast.parse(mutated)) == ast.dump(tree)
        except SyntaxError:
            continue
        if not same:
            before, after = (" ".join(text.split()) for text in (was, replacement))
            found.setdefault(
                mutated, Mutant(module, node.lineno, node.col_offset + 1, before, after, mutated)
            )
    return list(found.values())


def sampled(module: str, source: str, count: int) -> list[Mutant]:
    """So many of them, or all; always the same, as long as the module is."""
    mutants = mutants_of(module, source)
    chosen = Random(f"{SEED} {module}").sample(range(len(mutants)), min(count, len(mutants)))
    return [mutants[index] for index in sorted(chosen)]


def _replaced(source: str, node: ast.expr | ast.stmt, replacement: str) -> str:
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    last = lines[node.end_lineno - 1][node.end_col_offset :]
    return (before + replacement.encode() + last + b"".join(lines[node.end_lineno :])).decode()


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes and what may take their place; not of texts, types, or what is raised."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop(0)
        match node:
            case ast.JoinedStr() | ast.Raise() | ast.Assert() | ast.AnnAssign(value=None):
                continue
            case ast.AnnAssign(value=ast.expr() as value):
                pending.insert(0, value)
                continue
            case ast.FunctionDef(name="__str__" | "__repr__") | ast.keyword(arg="copy"):
                continue
            case ast.ClassDef(body=body):
                pending[:0] = body
                continue
            case ast.FunctionDef(args=args, body=body):
                given = [each for each in (*args.defaults, *args.kw_defaults) if each is not None]
                pending[:0] = [*given, *body]
                continue
        if isinstance(node, ast.expr):
            yield from ((node, text) for text in _of_expression(node))
        if isinstance(node, ast.stmt):
            yield from ((node, text) for text in _of_statement(node))
        pending[:0] = list(ast.iter_child_nodes(node))


def _of_expression(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield _written(ast.Compare(left, [_COMPARISONS[type(op)]()], [right]))
            if isinstance(op, ast.Lt | ast.GtE):
                other = ast.GtE() if isinstance(op, ast.Lt) else ast.Lt()
                yield _written(ast.Compare(left, [other], [right]))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield _written(ast.BinOp(left, _ARITHMETIC[type(op)](), right))
        case ast.BoolOp(op=op, values=values):
            yield _written(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield _written(operand)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield _written(ast.IfExp(test, orelse, body))
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield from (str(value + 1), str(value - 1) if value else "-1")
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


class _Mutated(MetaPathFinder, Loader):
    """Imports one module from another text."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        if fullname != self._name:
            return None
        locations = [str(self._path.parent)] if self._path.name == "__init__.py" else None
        return spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=locations
        )

    def exec_module(self, module: object) -> None:
        """See `Loader`."""
        code = compile(self._source, str(self._path), "exec", dont_inherit=True)
        exec(code, module.__dict__)


def is_noticed(mutant: Mutant, tests: Sequence[str]) -> str | None:
    """By what: "a test" or "time"; None if all tests pass. In a process of its own."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(_run(mutant, tests))
        os._exit(1)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return None if os.waitstatus_to_exitcode(status) == 0 else "a test"
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "time"


def _run(mutant: Mutant, tests: Sequence[str]) -> int:
    import pytest

    name = mutant.module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    sys.meta_path.insert(0, _Mutated(name, ROOT / mutant.module, mutant.source))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--rootdir", str(ROOT)]
    return int(pytest.main([*options, *tests]))


def main() -> int:
    """Try samples of all modules, or of those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.random_mutants")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--sample", type=int, default=SAMPLE)
    chosen = parser.parse_args()
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    _import_what_is_not_ours()
    targets = tomllib.loads(TARGETS.read_text())
    tried = survived = 0
    for module, tests in targets.items():
        if chosen.modules and module not in chosen.modules:
            continue
        source = (ROOT / module).read_text()
        begun = time.monotonic()
        if by := is_noticed(Mutant(module, 0, 0, "", "", source), tests):
            print(f"{module}: without a mutation, too, {by} says no: passed over", flush=True)
            continue
        print(f"{module}: {time.monotonic() - begun:.1f} s without a mutation", flush=True)
        for mutant in sampled(module, source, chosen.sample):
            begun = time.monotonic()
            by = is_noticed(mutant, tests)
            tried += 1
            survived += by is None
            verdict = "SURVIVED" if by is None else by
            print(f"{verdict:9} {time.monotonic() - begun:5.1f} s  {mutant}", flush=True)
    print(f"{tried} mutants, {tried - survived} noticed, {survived} not")
    return 0


def _import_what_is_not_ours() -> None:
    """Once, for all forks."""
    import mpmath  # noqa: F401
    import pyarrow  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import randomgen  # noqa: F401
    import scipy.optimize
    import scipy.stats  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
