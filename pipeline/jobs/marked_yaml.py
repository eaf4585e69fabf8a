"""YAML with line numbers, so that a message can name the line of a wrong value.

Files follow the core schema of YAML 1.2: mappings, lists, text, numbers, true and false. Unlike in
YAML 1.1, ``no`` is not false, ``1:30`` is not ninety, and ``1e-6`` is not text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

Path: TypeAlias = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_TAGS: dict[type[yaml.Node], str] = {
    yaml.ScalarNode: "tag:yaml.org,2002:str",
    yaml.SequenceNode: "tag:yaml.org,2002:seq",
    yaml.MappingNode: "tag:yaml.org,2002:map",
}
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}


class YamlError(ValueError):
    """Problems in a YAML text, as (line, message); lines are counted from 1."""

    def __init__(self, problems: Sequence[tuple[int, str]]) -> None:
        super().__init__("\n".join(f"line {line}: {message}" for line, message in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class MarkedYaml:
    values: dict[str, Any]
    lines: dict[Path, int]

    def line_of(self, path: Path) -> int:
        """Return the line of a key, or of the innermost enclosing key that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)


def read_marked_yaml(text: str) -> MarkedYaml:
    r"""Read a YAML mapping with the lines of its keys.

    Raises `YamlError` if the text is not a YAML mapping, or if a key is not text, is repeated or
    has no value.

    >>> document = read_marked_yaml("name: a\nepochs:\n  count: 8\n")
    >>> document.values, document.line_of(("epochs", "count"))
    ({'name': 'a', 'epochs': {'count': 8}}, 3)
    """
    try:
        root = yaml.compose(text, Loader=_Composer)
    except RecursionError:
        raise YamlError([(1, "nested too deeply")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context
        raise YamlError([(mark.line + 1 if mark else 1, f"not YAML: {reason}")]) from None
    except yaml.YAMLError as error:
        raise YamlError([(1, f"not YAML: {str(error).splitlines()[0]}")]) from None
    reader = _NodeReader()
    values = {} if root is None else reader.value(root, ())
    if not isinstance(values, dict):
        reader.problems.append((1, "expected keys and values, such as `name: my-job`"))
    if reader.problems:
        raise YamlError(reader.problems)
    return MarkedYaml(values, reader.lines)


class _Composer(yaml.SafeLoader):
    """YAML composer that leaves every plain scalar as text, for `_scalar` to interpret."""

    def resolve(self, kind: type[yaml.Node], value: object, implicit: object) -> str:
        return _TAGS[kind]


class _NodeReader:
    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.problems: list[tuple[int, str]] = []
        self._seen: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if id(node) in self._seen:
            self._complain(line, path, "aliases are not supported. Write the value out")
            return None
        self._seen.add(id(node))
        if node.tag != _TAGS[type(node)]:
            self._complain(line, path, f"the tag {node.tag} is not supported. Remove it")
        elif isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.ScalarNode):
            value = node.value if node.style is not None else _scalar(node.value)
            if value is None:
                self._complain(line, path, "has no value. Set one, or remove the key")
            return value
        return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        before = ""
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._complain(line, path, "has a key that is not text; expected text")
            elif _ends_decimal_comma(values.get(before), key, child):
                number = f"{values[before]},{key.value}"
                self._complain(
                    line,
                    (*path, before),
                    f"{number} in braces is read as two values. Use a decimal point "
                    f"({number.replace(',', '.')}) and no thousands separator",
                )
            elif key.value in values:
                first = self.lines[(*path, key.value)]
                self._complain(
                    line, (*path, key.value), f"is a duplicate key; line {first} has it already"
                )
            else:
                self.lines[(*path, key.value)] = line
                before = key.value
                values[key.value] = self.value(child, (*path, key.value))
        return values

    def _complain(self, line: int, path: Path, message: str) -> None:
        self.problems.append((line, f"{dotted(path)}: {message}" if path else message))


def _ends_decimal_comma(before: object, key: yaml.ScalarNode, child: yaml.Node) -> bool:
    """Return whether ``{epsilon: 1,5}`` was parsed as ``epsilon`` 1 and an empty ``5``."""
    bare = isinstance(child, yaml.ScalarNode) and child.style is None and child.value == ""
    whole = isinstance(before, int) and not isinstance(before, bool)
    return bare and whole and key.value.isdecimal()


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
