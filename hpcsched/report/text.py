"""Foreign text made harmless, and numbers in words.

What a trial prints, what a configuration holds and how things are called comes from outside: before it is shown, whatever could
steer a terminal (escape sequences, control characters, changes of writing direction) is taken out.
"""

from __future__ import annotations

import re

# ECMA-48: CSI sequences; OSC, DCS, SOS, PM and APC strings up to their end (BEL or ST); two-character escapes.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_LINE_END = re.compile(r"\r\n|\r(?=.)", re.DOTALL)


def clean(text: str) -> str:
    """Without escape sequences; a carriage return begins a new line (progress bars); any other character that does not
    print becomes U+FFFD. Line feeds and tabs stay."""
    text = _LINE_END.sub("\n", _SEQUENCE.sub("", text))
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def clean_line(text: str, most: int = 400) -> str:
    """One line, cut at `most` characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def clean_reason(text: str, most: int = 500) -> str:
    """One line; where it is too long the middle is left out: a traceback says what happened in its last line."""
    line = " ".join(clean(text).split())
    if len(line) <= most:
        return line
    head = most // 4
    return f"{line[:head]} … {line[head + 3 - most :]}"


def duration(seconds: float | None) -> str:
    """Such as "12.3 s", "4 min 05 s", "2 h 03 min"."""
    if seconds is None or seconds != seconds:
        return "unknown"
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"
