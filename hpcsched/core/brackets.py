"""A bracket: the rungs of one search, and what they say about a trial.

The three brackets answer the same two questions: may this trial go on after this result, and who of those that
wait may go on now? Results without a score are the same for all of them:

- "missing" (the metric was not in the report): nothing is recorded and the trial goes on; but when it reaches a
  milestone while an earlier one is still without its score, it is stopped: it would run to R unseen.
- "nan", "inf", "-inf": the trial has diverged. At a milestone where it has no score yet it is stopped; below one it
  goes on, for a single bad evaluation happens. It is never recorded, so it is never promoted.

A report that steps over milestones is recorded at every milestone passed. Scores are higher-is-better within; what is said of
them (`because`) is in the user's sign.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from hpcsched.core.enums import Mode
from hpcsched.core.ids import TrialId
from hpcsched.core.rungs import ArrivalRung, PercentileRung, TopRung, milestones_of
from hpcsched.core.words import IN_WORDS


class Objection(NamedTuple):
    """The trial shall not go on."""

    because: str
    for_good: bool = False
    """Stop it; else pause it."""


class Promotion(NamedTuple):
    trial_id: TrialId
    because: str


class Bracket(Protocol):
    def judge(
        self, trial_id: TrialId, iteration: int, score: float | None, problem: str | None
    ) -> Objection | None:
        """What a new result means for its trial; None: go on."""
        ...

    def paused(self, trial_id: TrialId) -> None:
        """The trial that was objected to has left and waits."""
        ...

    def resumed(self, trial_id: TrialId) -> None:
        """It does not wait any more: promoted, started for another reason, or dropped."""
        ...

    def promotion(self, fits: Callable[[TrialId], bool]) -> Promotion | None:
        """The best waiting trial that may go on and fits, highest rung first."""
        ...


def judge_unscored(num_unrecorded: int, problem: str | None) -> Objection | None:
    """A result without a score at a trial that has passed so many milestones without a score."""
    if problem in {None, "missing"}:
        if num_unrecorded >= 2:
            return Objection("it has reached a second milestone without reporting the metric", for_good=True)
        return None
    if num_unrecorded:
        return Objection(f"it has diverged: the metric is {problem} at a milestone", for_good=True)
    return None


class SpeculativeBracket:
    """HyperSched's rungs: speculative evaluation and continuous re-check (algorithms.md 1.6)."""

    __slots__ = ("_objector", "_protect_leader", "_say", "_waits_at", "rungs")

    def __init__(
        self,
        *,
        grace_period: int,
        max_iterations: int,
        reduction_factor: int,
        mode: Mode = Mode.MAX,
        protect_leader: bool = False,
    ) -> None:
        self._say = IN_WORDS[mode]
        self.rungs = [
            PercentileRung(milestone, reduction_factor)
            for milestone in reversed(milestones_of(grace_period, max_iterations, reduction_factor))
        ]
        """Highest first."""
        self._protect_leader = protect_leader
        self._objector: dict[TrialId, PercentileRung] = {}
        self._waits_at: dict[TrialId, PercentileRung] = {}

    def judge(
        self, trial_id: TrialId, iteration: int, score: float | None, problem: str | None
    ) -> Objection | None:
        if score is None:
            unrecorded = sum(
                1 for rung in self.rungs if rung.milestone <= iteration and trial_id not in rung.scores
            )
            objection = judge_unscored(unrecorded, problem)
            if objection is not None or problem in {None, "missing"}:
                return objection
        for rung in self.rungs:
            if rung.milestone > iteration:
                continue
            recorded = rung.scores.get(trial_id)
            cutoff = rung.cutoff()
            num = len(rung.scores)
            if recorded is None:
                if score is None:
                    continue
                recorded = score
                rung.record(trial_id, score)
            if cutoff is None or recorded >= cutoff:
                continue
            if self._protect_leader and trial_id == self._leader():
                continue
            self._objector[trial_id] = rung
            return Objection(
                f"its score {self._say(recorded)} at iteration {rung.milestone} is {self._say.worse} the cutoff {self._say(cutoff)} "
                f"of {num} trials"
            )
        return None

    def _leader(self) -> TrialId | None:
        """The best trial of the highest rung that anybody has reached."""
        for rung in self.rungs:
            if rung.scores:
                return rung.leader
        return None

    def paused(self, trial_id: TrialId) -> None:
        rung = self._objector.pop(trial_id, None)
        if rung is not None:
            self._waits_at[trial_id] = rung
            rung.pause(trial_id)

    def resumed(self, trial_id: TrialId) -> None:
        self._objector.pop(trial_id, None)
        self._waits_at.pop(trial_id, None)

    def promotion(self, fits: Callable[[TrialId], bool]) -> Promotion | None:
        for rung in self.rungs:
            cutoff = rung.cutoff()
            if cutoff is None:
                continue
            found: Promotion | None = None
            too_big: list[TrialId] = []
            while (entry := rung.best_paused()) is not None:
                score, trial_id = entry
                if self._waits_at.get(trial_id) is not rung:
                    rung.discard()  # it has left this rung since
                    continue
                if score < cutoff:
                    break
                rung.discard()
                if fits(trial_id):
                    found = Promotion(
                        trial_id,
                        f"its score {self._say(score)} at iteration {rung.milestone} is not {self._say.worse} the cutoff "
                        f"{self._say(cutoff)} of {len(rung.scores)} trials",
                    )
                    break
                too_big.append(trial_id)
            for trial_id in too_big:
                rung.pause(trial_id)
            if found is not None:
                self._waits_at.pop(found.trial_id, None)
                return found
        return None


class PromotionBracket:
    """ASHA with pausing and promoting: only the best floor(n / eta) of a rung go on (algorithms.md section 4).

    A trial that is among them on arrival goes on at once.
    """

    __slots__ = ("_say", "_waits_at", "rungs")

    def __init__(
        self, *, grace_period: int, max_iterations: int, reduction_factor: int, mode: Mode = Mode.MAX
    ) -> None:
        self._say = IN_WORDS[mode]
        self.rungs = [
            TopRung(milestone, reduction_factor)
            for milestone in reversed(milestones_of(grace_period, max_iterations, reduction_factor))
        ]
        """Highest first."""
        self._waits_at: dict[TrialId, TopRung] = {}

    def judge(
        self, trial_id: TrialId, iteration: int, score: float | None, problem: str | None
    ) -> Objection | None:
        objector: TopRung | None = None
        unrecorded = 0
        highest = True
        for rung in self.rungs:
            if rung.milestone > iteration:
                continue
            if trial_id in rung.records:
                break  # and so in all lower ones
            unrecorded += 1
            if score is None:
                continue
            record = rung.record(trial_id, score)
            if highest and not record.in_top:
                objector = rung
            highest = False
        if score is None:
            return judge_unscored(unrecorded, problem)
        if objector is None:
            return None
        self._waits_at[trial_id] = objector
        least = objector.worst_of_top()
        top = "nobody goes on yet" if least is None else f"the last that goes on has {self._say(least)}"
        return Objection(
            f"its score {self._say(score)} at iteration {objector.milestone} is not among the best {objector.num_top} of "
            f"{len(objector.records)} trials: {top}"
        )

    def paused(self, trial_id: TrialId) -> None:
        rung = self._waits_at.get(trial_id)
        if rung is not None:
            rung.pause(trial_id)

    def resumed(self, trial_id: TrialId) -> None:
        rung = self._waits_at.pop(trial_id, None)
        if rung is not None:
            rung.resume(trial_id)

    def promotion(self, fits: Callable[[TrialId], bool]) -> Promotion | None:
        for rung in self.rungs:
            too_big = []
            found: Promotion | None = None
            while (record := rung.best_waiting()) is not None:
                rung.discard()
                if fits(record.trial_id):
                    found = Promotion(
                        record.trial_id,
                        f"its score {self._say(record.score)} at iteration {rung.milestone} is among the best {rung.num_top} of "
                        f"{len(rung.records)} trials",
                    )
                    break
                too_big.append(record)
            for record in too_big:
                rung.put_back(record)
            if found is not None:
                self.resumed(found.trial_id)
                return found
        return None


class StoppingBracket:
    """ASHA that stops (Ray Tune's default): decided on arrival, against earlier arrivals, for good (T7)."""

    __slots__ = ("_say", "rungs")

    def __init__(
        self, *, grace_period: int, max_iterations: int, reduction_factor: int, mode: Mode = Mode.MAX
    ) -> None:
        self._say = IN_WORDS[mode]
        self.rungs = [
            ArrivalRung(milestone, reduction_factor)
            for milestone in reversed(milestones_of(grace_period, max_iterations, reduction_factor))
        ]
        """Highest first."""

    def judge(
        self, trial_id: TrialId, iteration: int, score: float | None, problem: str | None
    ) -> Objection | None:
        objection: Objection | None = None
        unrecorded = 0
        highest = True
        for rung in self.rungs:
            if rung.milestone > iteration:
                continue
            if trial_id in rung.recorded:
                break
            unrecorded += 1
            if score is None:
                continue
            cutoff = rung.cutoff()
            if highest and cutoff is not None and score < cutoff:
                objection = Objection(
                    f"its score {self._say(score)} at iteration {rung.milestone} is {self._say.worse} the cutoff "
                    f"{self._say(cutoff)} of the {rung.num} trials before it",
                    for_good=True,
                )
            rung.record(trial_id, score)
            highest = False
        return judge_unscored(unrecorded, problem) if score is None else objection

    def paused(self, trial_id: TrialId) -> None:
        """Nobody is ever paused."""

    def resumed(self, trial_id: TrialId) -> None:
        """Nobody is ever paused."""

    def promotion(self, fits: Callable[[TrialId], bool]) -> Promotion | None:
        return None
