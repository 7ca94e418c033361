"""Who held which GPU when, as a picture of characters: for the end of a run in a terminal, a batch log or a pipe.

Pure: spans in, lines out. It needs no colour: each stretch begins with its trial's number.

    n1:0  0━━━━━━━━3━━━━━━━━━━━━━━━━━━━━━━━━
    n1:1  1━━━2━━━━3━━━━━━━━━━━━━━··········
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcsched.eventlog.holdings import Holding
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.state import RunState
from hpcsched.report.text import clean_line, duration
from hpcsched.runfolder import RunFolder
from hpcsched.topology.machine import Machine

MOST_ROWS = 48


class Span(NamedTuple):
    row: str
    """Such as "n1:0"."""
    trial_id: int
    from_s: float
    to_s: float


def gantt(
    rows: Sequence[str],
    spans: Iterable[Span],
    *,
    end_s: float,
    deadline_s: float | None = None,
    width: int = 80,
    ascii_only: bool = False,
    most_rows: int = MOST_ROWS,
) -> list[str]:
    """One line a row, a time axis below; no line is longer than `width` (at least 40).

    A column shows who held the row in the middle of its stretch of time. `end_s`: the right end, seconds since the
    experiment began; a deadline within it is marked on the axis.
    """
    bar, idle = ("=", ".") if ascii_only else ("━", "·")
    width = max(40, width)
    end_s = max(end_s, 1e-9)
    shown = list(rows[:most_rows])
    label = min(max((len(clean_line(row)) for row in shown), default=0), width // 3)
    num_columns = width - label - 1
    held: dict[str, list[int | None]] = {row: [None] * num_columns for row in shown}
    for span in spans:
        cells = held.get(span.row)
        if cells is None:
            continue
        first = max(0, round(span.from_s / end_s * num_columns))
        last = min(num_columns, round(span.to_s / end_s * num_columns))
        cells[first:last] = [span.trial_id] * (last - first)
    lines = [f"{_fit(clean_line(row), label)} {_bars(held[row], bar, idle)}" for row in shown]
    if len(rows) > len(shown):
        lines.append(f"{len(rows) - len(shown)} more rows are not shown; the report has them all"[:width])
    lines.append(" " * (label + 1) + _axis(num_columns, end_s, deadline_s))
    return lines


def picture_of(folder: RunFolder, *, width: int = 80, ascii_only: bool = False) -> str:
    """The picture of a run, from its journal. Raises as `read_journal`."""
    holdings: list[Holding] = []
    state = RunState(on_holding=holdings.append)
    for record in read_journal(folder):
        state.feed(record)
    return "\n".join(picture_of_state(state, holdings, width=width, ascii_only=ascii_only))


def picture_of_state(
    state: RunState, ended: Iterable[Holding], *, width: int = 80, ascii_only: bool = False
) -> list[str]:
    """`ended`: what `state` has given to its `on_holding`."""
    if state.machine is None:
        return []
    end_s = state.now if state.over_at is None else state.over_at
    spans = [
        Span(
            row_of(holding.node, holding.gpus),
            holding.trial_id,
            holding.from_s,
            end_s if holding.to_s is None else holding.to_s,
        )
        for holding in (*ended, *state.holdings())
    ]
    return gantt(
        rows_of(state.machine),
        spans,
        end_s=end_s,
        deadline_s=state.deadline_s,
        width=width,
        ascii_only=ascii_only,
    )


def rows_of(machine: Machine) -> list[str]:
    """One row an atom."""
    return [row_of(atom.node, atom.gpus) for atom in machine.atoms]


def row_of(node: str, gpus: Sequence[str]) -> str:
    return f"{node}:{','.join(gpus)}"


def _bars(cells: Sequence[int | None], bar: str, idle: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(cells):
        to = at
        while to < len(cells) and cells[to] == cells[at]:
            to += 1
        holder = cells[at]
        number = "" if holder is None else str(holder)
        fill = idle if holder is None else bar
        out.append((number if len(number) <= to - at else "").ljust(to - at, fill))
        at = to
    return "".join(out)


def _axis(num_columns: int, end_s: float, deadline_s: float | None) -> str:
    text = list("0" + " " * (num_columns - 1))
    right = duration(end_s)
    text[num_columns - len(right) :] = right
    if deadline_s is not None and deadline_s <= end_s * 1.001:
        mark = f"deadline {duration(deadline_s)} ^"
        at = min(num_columns, max(len(mark), round(deadline_s / end_s * num_columns)))
        text[at - len(mark) : at] = mark
    return "".join(text).rstrip()


def _fit(label: str, width: int) -> str:
    return label.ljust(width) if len(label) <= width else label[: width - 1] + "…"
