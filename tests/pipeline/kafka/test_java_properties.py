"""Test that .properties files are parsed as in Java."""

import pytest

from dpstream.pipeline.kafka.client_properties import Property, parse_properties


def test_property_on_several_lines_has_the_number_of_its_first_line() -> None:
    assert parse_properties("# x\n\na = 1,\\\n  2\nb = 3") == {
        "a": Property("1,2", 3),
        "b": Property("3", 5),
    }


def test_malformed_escape_error_contains_the_line_number() -> None:
    with pytest.raises(ValueError, match=r"line 2: .*four hexadecimal digits"):
        parse_properties("a=1\nb=\\u12g4")
