"""Numbers in the sentences of `because`: scores as the user's own metric, and atoms in the singular and plural."""

from __future__ import annotations

from typing import NamedTuple

from hpcsched.core.enums import Mode


class InWords(NamedTuple):
    """How scores are said. Within the core higher is better; people see their metric, whatever its direction."""

    sign: float
    worse: str
    """What a worse score is than another: "below" or "above"."""

    def __call__(self, score: float) -> str:
        return f"{self.sign * score + 0.0:.6g}"  # + 0.0: no "-0"


IN_WORDS = {Mode.MAX: InWords(1.0, "below"), Mode.MIN: InWords(-1.0, "above")}


def atoms(num: int) -> str:
    return "1 atom" if num == 1 else f"{num} atoms"


def atoms_are(num: int) -> str:
    """ "1 atom is", "2 atoms are"."""
    return f"{atoms(num)} {'is' if num == 1 else 'are'}"
