"""Tables that are written as they are look as rich would have laid them out."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.table import Table

from dpstream.pipeline.cli.output import table_of

CELLS = st.text("ab 1é東e\u0301\x1b", max_size=6)


def printed(table: RenderableType, width: int, *, terminal: bool = False) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, force_terminal=terminal).print(table)
    return file.getvalue()


@given(
    columns=st.lists(
        st.builds(
            lambda mark, name: mark + name,
            st.sampled_from(["", ">", "="]),
            st.text("abc", min_size=1),
        ),
        min_size=1,
        max_size=4,
    ),
    data=st.data(),
    width=st.integers(4, 60),
)
def test_tables_look_as_rich_lays_them_out(
    columns: list[str], data: st.DataObject, width: int
) -> None:
    rows = data.draw(
        st.lists(st.lists(CELLS, min_size=len(columns), max_size=len(columns)), max_size=4)
    )
    written = table_of(columns, rows)
    laid_out = written._table()  # type: ignore[union-attr]
    assert isinstance(laid_out, Table)
    assert printed(written, width) == printed(laid_out, width)
