"""Rungs: where trials are compared.

Rung i lies at iteration r eta^i; all up to R exist, counted in integers ((1, 243, 3) has 243 among them, which
floating point loses). What a trial scores first at or after a milestone is recorded there and never changed.

Three ways to compare (algorithms.md 1.6 and 4; n scores recorded at the rung, a reduction factor eta):

- `PercentileRung` (HyperSched): the cutoff is the percentile at 1 - 1/eta; whoever is below it may be paused, and a
  paused trial whose score is not below it any more may go on. With n distinct scores ceil(n / eta) pass.
- `TopRung` (ASHA, pausing and promoting): the best floor(n / eta) pass.
- `ArrivalRung` (ASHA, stopping): on arrival only, against the percentile of those who came before.

Each costs O(log n) a record and O(1) a question, whatever has been recorded: a percentile is two heaps, the best
floor(n / eta) are two heaps, and the paused trials are a heap by score whose stale entries are skipped when met.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

from hpcsched.core.ids import TrialId
from hpcsched.core.percentile import RunningPercentile


def milestones_of(grace_period: int, max_iterations: int, reduction_factor: int) -> tuple[int, ...]:
    """r, r eta, r eta^2, ... as far as R, lowest first. Integers only."""
    assert grace_period >= 1
    assert reduction_factor >= 2
    milestones = []
    milestone = grace_period
    while milestone <= max_iterations:
        milestones.append(milestone)
        milestone *= reduction_factor
    return tuple(milestones)


class PercentileRung:
    """Scores at one milestone, their percentile, and the trials paused here."""

    __slots__ = ("_paused", "_percentile", "_queued", "leader", "leader_score", "milestone", "scores")

    def __init__(self, milestone: int, reduction_factor: int) -> None:
        self.milestone = milestone
        self.scores: dict[TrialId, float] = {}
        """The first score of each trial at or after the milestone."""
        self._percentile = RunningPercentile(reduction_factor - 1, reduction_factor)
        self._paused: list[tuple[float, TrialId]] = []
        self._queued: set[TrialId] = set()
        self.leader: TrialId | None = None
        self.leader_score = float("-inf")

    def cutoff(self) -> float | None:
        """None while fewer than two scores are recorded."""
        return self._percentile.value() if self._percentile.num >= 2 else None

    def record(self, trial_id: TrialId, score: float) -> None:
        assert trial_id not in self.scores, f"trial {trial_id} is recorded at {self.milestone} already"
        self.scores[trial_id] = score
        self._percentile.add(score)
        if score > self.leader_score:
            self.leader, self.leader_score = trial_id, score

    def pause(self, trial_id: TrialId) -> None:
        """The trial waits here from now on."""
        if trial_id not in self._queued:
            self._queued.add(trial_id)
            heappush(self._paused, (-self.scores[trial_id], trial_id))

    def best_paused(self) -> tuple[float, TrialId] | None:
        """The best entry (score, trial), which may be stale: `discard` it then."""
        if not self._paused:
            return None
        negated, trial_id = self._paused[0]
        return -negated, trial_id

    def discard(self) -> tuple[float, TrialId]:
        """Take the best entry off."""
        negated, trial_id = heappop(self._paused)
        self._queued.discard(trial_id)
        return -negated, trial_id


class Record:
    """What one trial scored at a `TopRung`."""

    __slots__ = ("in_top", "order", "score", "trial_id", "waiting")

    def __init__(self, trial_id: TrialId, score: float, order: int) -> None:
        self.trial_id = trial_id
        self.score = score
        self.order = order
        self.in_top = False
        self.waiting = False
        """Paused at this rung and not promoted from it yet."""


class TopRung:
    """Scores at one milestone, the best floor(n / eta) of them (ties to the earlier), and who of these waits."""

    __slots__ = ("_eta", "_promotable", "_rest", "_top", "milestone", "records")

    def __init__(self, milestone: int, reduction_factor: int) -> None:
        self.milestone = milestone
        self._eta = reduction_factor
        self.records: dict[TrialId, Record] = {}
        self._top: list[tuple[float, int, Record]] = []
        """The worst of the best on top: (score, -order)."""
        self._rest: list[tuple[float, int, Record]] = []
        """The best of the others on top: (-score, order)."""
        self._promotable: list[tuple[float, int, Record]] = []

    @property
    def num_top(self) -> int:
        """floor(n / eta)."""
        return len(self.records) // self._eta

    def record(self, trial_id: TrialId, score: float) -> Record:
        assert trial_id not in self.records, f"trial {trial_id} is recorded at {self.milestone} already"
        order = len(self.records)
        record = Record(trial_id, score, order)
        self.records[trial_id] = record
        if self._top and score > self._top[0][0]:
            _, _, worst = heapreplace(self._top, (score, -order, record))
            record.in_top = True
            worst.in_top = False
            heappush(self._rest, (-worst.score, worst.order, worst))
        else:
            heappush(self._rest, (-score, order, record))
        if len(self._top) < self.num_top:
            _, _, best = heappop(self._rest)
            best.in_top = True
            heappush(self._top, (best.score, -best.order, best))
            self._offer(best)
        return record

    def worst_of_top(self) -> float | None:
        """The score that the last of the best has; None while nobody is in."""
        return self._top[0][0] if self._top else None

    def pause(self, trial_id: TrialId) -> None:
        """The trial waits here from now on."""
        record = self.records[trial_id]
        if not record.waiting:
            record.waiting = True
            self._offer(record)

    def resume(self, trial_id: TrialId) -> None:
        """It does not wait any more; it is never promoted from here again."""
        self.records[trial_id].waiting = False

    def _offer(self, record: Record) -> None:
        if record.in_top and record.waiting:
            heappush(self._promotable, (-record.score, record.order, record))

    def best_waiting(self) -> Record | None:
        """The best of the best floor(n / eta) that waits."""
        heap = self._promotable
        while heap:
            record = heap[0][2]
            if record.in_top and record.waiting:
                return record
            heappop(heap)  # it was promoted or has fallen out; if it comes in again it is offered again
        return None

    def discard(self) -> Record:
        """Take what `best_waiting` showed off the heap."""
        return heappop(self._promotable)[2]

    def put_back(self, record: Record) -> None:
        self._offer(record)


class ArrivalRung:
    """Scores at one milestone in order of arrival."""

    __slots__ = ("_percentile", "milestone", "recorded")

    def __init__(self, milestone: int, reduction_factor: int) -> None:
        self.milestone = milestone
        self.recorded: set[TrialId] = set()
        self._percentile = RunningPercentile(reduction_factor - 1, reduction_factor)

    @property
    def num(self) -> int:
        return self._percentile.num

    def cutoff(self) -> float | None:
        """None while nobody has arrived."""
        return self._percentile.value()

    def record(self, trial_id: TrialId, score: float) -> None:
        self.recorded.add(trial_id)
        self._percentile.add(score)
