"""Parts of a live view as lines of text: deadline bar, best score, who holds which atom. Pure.

Each line is at most `width` columns and never wraps, so that a frame has the height that it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hpcsched.core.enums import AtomState
from hpcsched.eventlog.shown import ShownCore
from hpcsched.report.text import clean_line, duration
from hpcsched.topology.machine import Machine

COLOURS = (
    "cyan",
    "green",
    "yellow",
    "magenta",
    "blue",
    "red",
    "bright_cyan",
    "bright_green",
    "bright_yellow",
)
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", ".:-=+*#@"
BAR, ASCII_BAR = ("━", "╸", "─"), ("=", ">", "-")
MARKS = {AtomState.FREE: "·", AtomState.QUARANTINED: "?", AtomState.DOWN: "x"}


def colour_of(trial_id: int) -> str:
    """The same in every picture of a run."""
    return COLOURS[trial_id % len(COLOURS)]


def deadline_line(now_s: float, deadline_s: float | None, width: int, *, ascii_only: bool = False) -> Text:
    """Time left and a bar of the time that has passed."""
    if deadline_s is None:
        return fitted(Text(f"{duration(now_s)}, no deadline"), width)
    left = deadline_s - now_s
    words = f"{duration(left)} left" if left > 0 else f"deadline was {duration(-left)} ago"
    columns = max(0, width - len(words) - 1)
    full, edge, rest = ASCII_BAR if ascii_only else BAR
    done = 1.0 if deadline_s <= 0 else min(1.0, max(0.0, now_s / deadline_s))
    num = round(done * columns)
    bar = full * max(0, num - 1) + (edge if num else "")
    style = "bold red" if done >= 0.9 else "bold green"
    return fitted(Text(words + " ").append(bar, style).append(rest * (columns - num), "dim"), width)


def sparkline(
    points: Sequence[tuple[float, float]], end_s: float, columns: int, *, ascii_only: bool = False
) -> str:
    """The last value up to each moment of 0..end_s, one character a column; blank before the first point.

    points: (time in s, value), in order of time.
    """
    if columns < 1 or not points:
        return ""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    low, high = min(value for _, value in points), max(value for _, value in points)
    span = high - low
    line: list[str] = []
    at, current = 0, None
    for column in range(columns):
        until = end_s * (column + 1) / columns
        while at < len(points) and points[at][0] <= until:
            current = points[at][1]
            at += 1
        if current is None:
            line.append(" ")
        else:
            share = 1.0 if span <= 0 else (current - low) / span
            line.append(blocks[min(len(blocks) - 1, int(share * len(blocks)))])
    return "".join(line)


def atom_lines(machine: Machine, scheduler: ShownCore, width: int, most_lines: int) -> list[Text]:
    """Who holds which atom, node by node; several nodes a line where they fit. A reserved atom has "+" behind its
    trial; "·" is free, "?" in quarantine, "x" down."""
    if most_lines < 1:
        return []
    by_node: dict[str, list[Text]] = {}
    digits = max(2, len(str(max(0, len(scheduler.trials) - 1))))
    for atom in machine.atoms:
        by_node.setdefault(atom.node, []).append(_cell(scheduler, atom.atom_id, digits))
    label = min(max((len(clean_line(node)) for node in by_node), default=0), 24)
    blocks = [
        Text(clean_line(node)[:label].ljust(label), "bold").append_text(Text().join(cells))
        for node, cells in by_node.items()
    ]
    each = max((block.cell_len for block in blocks), default=1) + 2
    per_line = max(1, (width + 2) // each)
    lines: list[Text] = []
    for start in range(0, len(blocks), per_line):
        if len(lines) == most_lines - 1 and start + per_line < len(blocks):
            lines.append(fitted(Text(f"... and {len(blocks) - start} more nodes", "dim"), width))
            break
        line = Text()
        for block in blocks[start : start + per_line]:
            block.pad_right(each - block.cell_len)
            line.append_text(block)
        lines.append(fitted(line, width))
    return lines


def _cell(scheduler: ShownCore, atom_id: int, digits: int) -> Text:
    state, holder = scheduler.atom_state(atom_id), scheduler.holder(atom_id)  # type: ignore[arg-type]  # machine's own ids
    if holder is not None and state in (AtomState.HELD, AtomState.RESERVED):
        mark = "+" if state is AtomState.RESERVED else " "
        return Text(f" {holder:>{digits}}{mark}", colour_of(holder))
    return Text(f" {MARKS.get(state, '·'):>{digits}} ", "dim")


def fitted(line: Text, width: int) -> Text:
    """Cut to `width` columns, with an ellipsis where something is lost."""
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line
