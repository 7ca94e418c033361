"""Numbers in sentences: scores as the user's own metric, atoms in the singular and plural, trials that there are."""

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


def no_such_trial(trial_id: int, num_trials: int) -> str:
    """For whoever has given the number of a trial that does not exist; the run is named before it."""
    match num_trials:
        case 0:
            known = "there is none yet"
        case 1:
            known = "there is only trial 0"
        case _:
            known = f"there are 0 to {num_trials - 1}"
    return f"there is no trial {trial_id}; {known}"
