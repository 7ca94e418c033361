"""Synchronous successive halving: one bracket of SHA or Hyperband (algorithms.md section 4; Jamieson and Talwalkar 2016).

A bracket begins with n trials. In rung i its n_i = floor(n eta^-i) best trials train to the milestone r_i; when *all*
of them are there the best floor(n_i / eta) go on to rung i + 1 and the others are dropped. Nobody of rung i + 1 trains
before the last of rung i is done, so atoms stay idle at the end of each rung: that is the algorithm.

What the definition leaves open:

- Done in a rung is who has reported at or after its milestone; only the first such score counts. A report that steps
  over several milestones is done in all of these rungs (as soon as they are reached) and takes no atom for them.
- Ties go to the earlier trial. A trial whose metric is *missing* at the milestone ranks behind all that have a score.
- A trial that has failed, was stopped by a user, or has *diverged* (nan, inf, -inf at the milestone) counts as done and
  never goes on, even when its place stays empty. A crash with retries left is no failure: the rung waits for it.
- A trial whose script ended by itself counts as done with its last score, in this rung and in later ones.
- Fewer configurations than n: n is the number that came. The definition asks for n >= eta^i; where floor(n eta^-i) is
  0, one goes on, so that somebody reaches the last milestone.
- Whoever is the last to arrive and goes on is not paused and started again; it just goes on.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from hpcsched.core.enums import TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.transitions import ENDED
from hpcsched.core.view import Decision, Drop, Pause, Start, Stop, TrialView, View

WAITS = frozenset({TrialState.PENDING, TrialState.PAUSED})
"""It holds no atoms and may be started."""


class Plan(NamedTuple):
    """One bracket before it begins."""

    label: str
    """How sentences for `explain` call it."""
    num_trials: int
    """n."""
    milestones: tuple[int, ...]
    """r_i, iterations, strictly increasing."""


def size_of_rung(rung: int, num_trials: int, reduction_factor: int) -> int:
    """n_i = floor(n eta^-i), at least one."""
    survivors: int = num_trials // reduction_factor**rung
    return max(1, survivors)


class Line:
    """Who may start and who is out, for all brackets of a policy together: the older bracket goes first."""

    __slots__ = ("_out", "_ready")

    def __init__(self) -> None:
        self._ready: list[tuple[int, int, int, TrialId]] = []
        """A heap: (number of the bracket, rung, rank, trial). Entries whose trial does not wait are skipped when met."""
        self._out: deque[tuple[TrialId, str]] = deque()

    def may_start(self, bracket: int, rung: int, rank: int, trial_id: TrialId) -> None:
        heappush(self._ready, (bracket, rung, rank, trial_id))

    def is_out(self, trial_id: TrialId, because: str) -> None:
        self._out.append((trial_id, because))

    def next_out(self, view: View) -> Drop | None:
        """Each trial that is out and waits is named once."""
        while self._out:
            trial_id, because = self._out.popleft()
            if view.trial(trial_id).state in WAITS:
                return Drop(trial_id, because)
        return None

    def first(self) -> tuple[int, TrialId] | None:
        """(bracket, trial) at the head, which may not be waiting any more: `discard` it then."""
        if not self._ready:
            return None
        bracket, _, _, trial_id = self._ready[0]
        return bracket, trial_id

    def discard(self) -> None:
        heappop(self._ready)


class Member:
    """What one trial of the current rung has shown there."""

    __slots__ = ("done", "rank", "score", "viable")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        """Place in the order of starts."""
        self.done = False
        self.score: float | None = None
        """At the milestone; None: missing, or not viable."""
        self.viable = True
        """May go on."""


class HalvingBracket:
    """The state of one bracket. Every trial costs O(log n) a rung."""

    __slots__ = (
        "_entry_closed", "_eta", "_line", "_losers", "_members", "_num_undone", "_plan", "is_over", "num_entered", "number",
        "rung",
    )  # fmt: skip

    def __init__(self, plan: Plan, *, number: int, reduction_factor: int, line: Line) -> None:
        self._plan = plan
        self._eta = reduction_factor
        self._line = line
        self.number = number
        self.rung = 0
        self.num_entered = 0
        """n once the entry is closed."""
        self.is_over = False
        self._entry_closed = False
        self._members: dict[TrialId, Member] = {}
        """Of the current rung."""
        self._num_undone = 0
        self._losers: dict[TrialId, str] = {}
        """Who is not to go on but has not left yet, and why."""

    @property
    def num_missing(self) -> int:
        """Configurations that it still takes."""
        return 0 if self._entry_closed else self._plan.num_trials - self.num_entered

    @property
    def milestone(self) -> int:
        return self._plan.milestones[self.rung]

    # ---- trials come

    def enter(self, trial: TrialView) -> None:
        """A new configuration."""
        assert self.num_missing > 0, "the bracket is full"
        rank = self.num_entered
        self._members[trial.trial_id] = Member(rank)
        self._num_undone += 1
        self.num_entered += 1
        self._line.may_start(self.number, 0, rank, trial.trial_id)
        self._entry_closed = self.num_entered == self._plan.num_trials

    def close_entry(self, view: View) -> None:
        """No more configurations will come: n is what has."""
        self._entry_closed = True
        self._advance(view)

    def start(self, view: View, trial_id: TrialId) -> Start | None:
        """The trial at the head of the line belongs to this bracket: start it if it has something to do."""
        member = self._members.get(trial_id)
        trial = view.trial(trial_id)
        if member is None or member.done:
            return None
        if trial.state not in WAITS:
            if trial.state in ENDED:  # while it waited: a user stopped it
                self._done(view, trial, member)
            return None
        return Start(trial_id, 1, f"{self._where()}: it trains to iteration {self.milestone}")

    # ---- what trials show

    def judge(self, view: View, trial: TrialView) -> Decision | None:
        """What a result means for its trial."""
        trial_id = trial.trial_id
        member = self._members.get(trial_id)
        if member is not None and not member.done:
            if trial.training_iteration < self.milestone:
                return None
            where, rung = self._where(), self.rung
            self._done(view, trial, member)
            if not member.viable:
                return Stop(trial_id, f"{where}: it has diverged, the metric is {trial.problem}")
            if self.rung == rung and not self.is_over:
                return Pause(trial_id, f"{where}: it waits for {self._waited_for()}")
            member = self._members.get(trial_id)
        if member is None:
            return Stop(trial_id, self._losers.get(trial_id, f"{self._plan.label}the last rung is done"))
        if not member.done:
            return None  # it was the last of its rung and goes on
        return Pause(trial_id, f"{self._where()}: it waits for {self._waited_for()}")

    def left(self, view: View, trial: TrialView) -> None:
        """A trial of this bracket does not run any more."""
        trial_id = trial.trial_id
        member = self._members.get(trial_id)
        if member is None:
            because = self._losers.pop(trial_id, f"{self._plan.label}the last rung is done")
            if trial.state in WAITS:
                self._line.is_out(trial_id, because)
        elif member.done:
            if not member.viable and trial.state in WAITS:
                self._line.is_out(trial_id, f"{self._where()}: it has diverged")
        elif trial.state in ENDED:
            self._done(view, trial, member)
        elif trial.state in WAITS:
            self._line.may_start(self.number, self.rung, member.rank, trial_id)

    def _done(self, view: View, trial: TrialView, member: Member) -> None:
        self._settle(trial, member)
        self._num_undone -= 1
        self._advance(view)

    def _settle(self, trial: TrialView, member: Member) -> None:
        diverged = trial.score is None and trial.problem not in {None, "missing"}
        member.done = True
        member.viable = not diverged and trial.state not in {TrialState.FAILED, TrialState.STOPPED}
        member.score = trial.score if member.viable else None

    # ---- from rung to rung

    def _advance(self, view: View) -> None:
        """As many rungs on as are done."""
        while self._entry_closed and not self._num_undone and not self.is_over:
            if self.rung + 1 == len(self._plan.milestones):
                self._end()
                return
            best = self._best(view)
            for trial_id in self._members:
                if trial_id not in best:
                    self._lose(view.trial(trial_id))
            if not best:
                self._end()
                return
            self.rung += 1
            self._members = {trial_id: Member(rank) for rank, trial_id in enumerate(best)}
            for trial_id, member in self._members.items():
                trial = view.trial(trial_id)
                if trial.training_iteration >= self.milestone or trial.state in ENDED:
                    self._settle(trial, member)
                    continue
                self._num_undone += 1
                if trial.state in WAITS:
                    self._line.may_start(self.number, self.rung, member.rank, trial_id)

    def _best(self, view: View) -> dict[TrialId, None]:
        """Who goes on, best first."""
        keep = size_of_rung(self.rung + 1, self.num_entered, self._eta)
        ranked = sorted(
            (member.score is None, -(member.score or 0.0), trial_id)
            for trial_id, member in self._members.items()
            if member.viable and view.trial(trial_id).state not in {TrialState.FAILED, TrialState.STOPPED}
        )
        return {trial_id: None for _, _, trial_id in ranked[:keep]}

    def _lose(self, trial: TrialView) -> None:
        keep = size_of_rung(self.rung + 1, self.num_entered, self._eta)
        because = f"{self._where()}: it is not among the best {keep} of {len(self._members)} at iteration {self.milestone}"
        if trial.state in WAITS:
            self._line.is_out(trial.trial_id, because)
        elif trial.state not in ENDED:
            self._losers[trial.trial_id] = because

    def _end(self) -> None:
        self.is_over = True
        self._members = {}

    # ---- sentences

    def _where(self) -> str:
        return f"{self._plan.label}rung {self.rung}"

    def _waited_for(self) -> str:
        if not self._entry_closed:
            return f"all {self._plan.num_trials} configurations to reach iteration {self.milestone}"
        return f"{self._num_undone} of {len(self._members)} trials to reach iteration {self.milestone}"
