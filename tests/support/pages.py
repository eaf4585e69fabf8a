"""Markdown files of the repository and their contents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("aggregators", "docker", "experiments", "pipeline", "randomizers", "tests", "topics")

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- python -m ([\w.]+) -->\n(.*?)<!-- end -->", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced block with the preceding heading and its language."""

    section: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in self.text.splitlines())
        return [line for line in lines if line]


@dataclass(frozen=True)
class Page:
    path: str

    def __str__(self) -> str:
        return self.path

    @property
    def folder(self) -> Path:
        """Base folder of links."""
        return (ROOT / self.path).parent

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text()

    @cached_property
    def prose(self) -> str:
        """Text outside of fences."""
        return _BLOCK.sub("", self.text)

    @property
    def blocks(self) -> Iterator[Block]:
        for found in _BLOCK.finditer(self.text):
            headings = _HEADING.findall(_BLOCK.sub("", self.text[: found.start()]))
            yield Block(headings[-1], found[1], found[2])

    @property
    def commands(self) -> list[str]:
        """Shell commands for the reader to run."""
        blocks = (block for block in self.blocks if block.language == "sh")
        return [command for block in blocks for command in block.commands]

    @property
    def generated(self) -> dict[str, str]:
        """Current text of the generated parts, by the module that prints each."""
        return dict(_COMMENT.findall(self.text))

    @property
    def links(self) -> list[str]:
        """Targets of links and pictures in the repository."""
        return [link for link in _LINK.findall(self.prose) if "://" not in link]

    @property
    def inline_code(self) -> list[str]:
        """Texts between backquotes, each on one line."""
        return [" ".join(code.split()) for code in _CODE.findall(self.prose)]

    @property
    def anchors(self) -> set[str]:
        """Anchors of this page, as GitHub derives them from headings."""
        headings = (re.sub(r"[^\w\- ]", "", text.lower()) for text in _HEADING.findall(self.prose))
        return {heading.replace(" ", "-") for heading in headings}


def _found() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        pages = (ROOT / folder).rglob("*.md")
        yield from (page for page in pages if "node_modules" not in page.parts)


PAGES = {
    str(page): page
    for page in sorted(
        (Page(path.relative_to(ROOT).as_posix()) for path in _found()),
        key=lambda page: (page.path.count("/"), page.path),
    )
}
README = PAGES["README.md"]
