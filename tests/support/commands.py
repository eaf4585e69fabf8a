"""Run commands of ``dpstream`` or another program in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from dpstream.pipeline.cli import main
from dpstream.pipeline.cli.commands import COMMANDS, installed_commands


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.errors
        return json.loads(self.output)


@dataclass(frozen=True, slots=True)
class Commands:
    """Call `program` like the installed command; skip the test if the command is missing."""

    capture: pytest.CaptureFixture[str]
    options: tuple[str, ...] = ()
    program: Callable[[Sequence[str]], int] = main

    def __call__(self, *arguments: object) -> Result:
        name = str(next(iter(arguments), None))
        if self.program is main and name in COMMANDS.keys() - installed_commands().keys():
            pytest.skip(f"this installation does not include dpstream {name}")
        self.capture.readouterr()
        code = self.program([*map(str, arguments), *self.options])
        output, errors = self.capture.readouterr()
        return Result(code, output, errors)
