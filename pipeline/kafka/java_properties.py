"""Java's .properties files, in which Kafka's own tools write down connections and settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

ENCODING = "iso-8859-1"

_LINE_ENDS = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Property:
    """One setting: its value and the number of the line (from 1) on which it begins."""

    value: str
    line: int


def parse_properties(text: str) -> dict[str, Property]:
    r"""Return the settings of a .properties file by key; of one that is there twice, the last.

    Raises `ValueError` naming the line of a malformed ``\u`` escape.

    >>> parse_properties("# where\nbootstrap.servers = a:9092,\\\n    b:9092\n")
    {'bootstrap.servers': Property(value='a:9092,b:9092', line=2)}
    """
    # Not at the top: it reads XML, too, and few commands read any such file.
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    properties, line = {}, 1
    try:
        for element in parse(text):
            if isinstance(element, KeyValue):
                properties[element.key] = Property(element.value, line)
            line += len(_LINE_ENDS.findall(element.source))
    except InvalidUEscapeError:
        raise ValueError(rf"line {line}: \u must be followed by four hexadecimal digits") from None
    return properties
