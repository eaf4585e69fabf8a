"""A .properties file means here what it means to Java."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.kafka.java_properties import Property, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("a:1\nb 2\nc\t:\t3", {"a": "1", "b": "2", "c": "3"}),
        ("# a=1\n  ! b=2\n\n\t\nc=3", {"c": "3"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        (
            "fruits = apple, \\\n\t  pear, \\\n  # no comment",
            {"fruits": "apple, pear, # no comment"},
        ),
        ("path=C:\\\\temp\\\\\nb=2", {"path": "C:\\temp\\", "b": "2"}),
        ("a\\ key\\:\\= = v", {"a key:=": "v"}),
        ("a=\\u00e9\\t\\n\\q", {"a": "\u00e9\t\nq"}),
        ("a=trailing\\", {"a": "trailing"}),
    ],
)
def test_reads_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert {key: found.value for key, found in parse_properties(text).items()} == expected


def test_a_setting_knows_the_line_on_which_it_begins() -> None:
    assert parse_properties("# x\n\na = 1,\\\n  2\nb = 3") == {
        "a": Property("1,2", 3),
        "b": Property("3", 5),
    }


def test_a_malformed_escape_is_named() -> None:
    with pytest.raises(ValueError, match=r"line 2: .*four hexadecimal digits"):
        parse_properties("a=1\nb=\\u12g4")


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_everything_escaped_comes_back(settings: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in settings.items())
    assert {key: found.value for key, found in parse_properties(text).items()} == settings
