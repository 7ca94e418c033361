"""The engine's record of one trial. Only `Scheduler` writes to it."""

from __future__ import annotations

from hpcsched.core.actions import CheckpointRef
from hpcsched.core.enums import PreemptReason, TrialState
from hpcsched.core.events import Config
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.core.snapshots import ORIGIN, Snapshot, Snapshots
from hpcsched.topology.machine import AtomId, Placement
from hpcsched.topology.span import Span


class Trial:
    """One configuration and how far it has come. The attributes that policies see are explained in `view.TrialView`."""

    __slots__ = (
        "atoms",
        "best_kept",
        "best_kept_score",
        "compared_with",
        "config",
        "contacted",
        "crashes",
        "dropped_because",
        "finishing",
        "fruitless",
        "grace_s",
        "heard_at",
        "incarnation",
        "incarnation_iteration",
        "judged_iteration",
        "kept",
        "kept_snapshots",
        "killing",
        "lacks_metric",
        "last_iter_s",
        "last_num_atoms",
        "launch_failures",
        "next_placement",
        "node_failures",
        "node_fault",
        "one_atom_iter_s",
        "preempt_reason",
        "problem",
        "ran_at",
        "ran_over",
        "reported",
        "reserved",
        "resize_because",
        "restart",
        "restart_ref",
        "score",
        "setup_time_s",
        "snapshots",
        "span",
        "start_limit_s",
        "started_at",
        "state",
        "training_iteration",
        "training_s",
        "trial_id",
        "warm",
        "window",
    )  # fmt: skip

    def __init__(self, trial_id: TrialId, config: Config) -> None:
        self.trial_id = trial_id
        self.config = config
        self.state = TrialState.PENDING
        self.incarnation = Incarnation(0)
        """0 before the first launch."""

        self.training_iteration = 0
        self.score: float | None = None
        self.problem: str | None = None
        self.window: tuple[float, ...] = ()
        self.training_s = 0.0
        self.last_iter_s: float | None = None
        self.grace_s = 0.0
        """How long leaving may take, when it was last asked to."""
        self.ran_at = 0
        """Atoms on which `last_iter_s` was measured; 0 before."""
        self.ran_over = Span.ISLAND
        """Their span."""
        self.one_atom_iter_s: float | None = None
        """Seconds of an iteration on one atom: its last one there, or inferred (`compared_with`)."""
        self.compared_with: tuple[int, Span] | None = None
        """Size and span from which `one_atom_iter_s` was inferred: it says nothing about these."""
        self.setup_time_s: float | None = None
        self.warm = False
        self.started_at: float | None = None
        self.start_limit_s = 0.0
        """How long this incarnation's start may take."""
        self.heard_at = 0.0
        self.incarnation_iteration = 0
        """Last iteration reported in this incarnation; 0 before."""
        self.judged_iteration = 0
        """Last iteration that the policy has seen."""
        self.reported = False
        """At least one result had a finite metric."""
        self.lacks_metric = False
        """It has reported, but never the metric."""

        self.atoms: tuple[AtomId, ...] = ()
        self.span = Span.ISLAND
        """Of its current or latest placement."""
        self.reserved: tuple[AtomId, ...] = ()
        self.next_placement: Placement | None = None
        """Where a resize will take it."""
        self.resize_because = ""
        self.dropped_because = ""
        """Why it will not run again though nobody had to be asked to leave; "" otherwise. No action says so."""
        self.last_num_atoms = 1

        self.contacted = False
        self.preempt_reason: PreemptReason | None = None
        self.killing = False
        self.finishing = False
        """It has reported iteration R and leaves by itself."""
        self.node_fault = False
        self.crashes = 0
        self.node_failures = 0
        self.launch_failures = 0
        self.fruitless = 0
        """Incarnations in a row that trained but saved nothing."""

        self.snapshots = Snapshots()
        """Of this incarnation, since its last checkpoint."""
        self.restart = ORIGIN
        """What the trial goes back to: the state at its latest complete checkpoint."""
        self.restart_ref: CheckpointRef | None = None
        self.best_kept: CheckpointRef | None = None
        self.best_kept_score: float | None = None
        self.kept: list[CheckpointRef] = []
        """Its checkpoints that are not deleted yet: at most three."""
        self.kept_snapshots: dict[CheckpointRef, Snapshot] = {}
        """What was known at each of `kept`."""

    @property
    def num_atoms(self) -> int:
        return len(self.atoms) + len(self.reserved)

    def snapshot_at(self, training_iteration: int) -> Snapshot:
        """The state after that iteration of this incarnation; without a score when it was not reported (or forgotten)."""
        if (snapshot := self.snapshots.at(training_iteration)) is not None:
            return snapshot
        if self.restart.training_iteration == training_iteration:
            return self.restart
        return Snapshot(training_iteration, None, (), self.training_s)

    def go_back(self) -> None:
        """To the last complete checkpoint: what came after it is lost."""
        self.training_iteration, self.score, self.window, self.training_s = self.restart
        self.problem = None
        self.snapshots = Snapshots()
        self.incarnation_iteration = 0
