"""A table that displays well in a terminal and in a notebook, where pandas is not installed."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcsched.report.text import clean_line

MOST_ROWS_SHOWN = 60
MOST_CELL = 60


class Table(Sequence[Mapping[str, Any]]):
    """Rows with named columns: `len(table)`, `table[0]["score"]`, `for row in table`, `table.column("score")`."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        self.columns = tuple(columns)
        self._rows = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return Table(self.columns, self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    def column(self, name: str) -> list[Any]:
        """Raises KeyError when there is no such column."""
        if name not in self.columns:
            raise KeyError(f"{name}: no such column; there are {', '.join(self.columns)}")
        return [row[name] for row in self._rows]

    def __repr__(self) -> str:
        shown = [[_cell(row[name]) for name in self.columns] for row in self._rows[:MOST_ROWS_SHOWN]]
        widths = [max([len(name), *(len(row[at]) for row in shown)]) for at, name in enumerate(self.columns)]
        numeric = [
            all(
                isinstance(row[name], int | float) or row[name] is None
                for row in self._rows[:MOST_ROWS_SHOWN]
            )
            for name in self.columns
        ]

        def line(cells: Sequence[str]) -> str:
            parts = [
                cell.rjust(width) if is_number else cell.ljust(width)
                for cell, width, is_number in zip(cells, widths, numeric, strict=True)
            ]
            return "  ".join(parts).rstrip()

        return "\n".join([line(self.columns), *map(line, shown), *self._rest()])

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(row[name]))}</td>" for name in self.columns) + "</tr>"
            for row in self._rows[:MOST_ROWS_SHOWN]
        )
        rest = "".join(f"<p>{html.escape(words)}</p>" for words in self._rest())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _rest(self) -> list[str]:
        left = len(self) - MOST_ROWS_SHOWN
        return [f"... and {left} more rows; a slice shows others"] if left > 0 else []


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else clean_line(str(value), MOST_CELL)
