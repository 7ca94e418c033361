"""What the core is told once, at the start. Plain values, stored in the journal's first record."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from hpcsched.core.enums import Mode


class _Policy(msgspec.Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    pass


class FifoSettings(_Policy, frozen=True, tag="fifo"):
    """No early stop: one atom a trial, the next when one ends."""


class AshaSettings(_Policy, frozen=True, tag="asha"):
    """ASHA; `stopping = True` is Ray's variant (decided on arrival, irrevocable), else pausing and promoting."""

    stopping: bool = False


class ShaSettings(_Policy, frozen=True, tag="sha"):
    """Synchronous successive halving of `num_trials` configurations."""

    num_trials: int = 81


class HyperbandSettings(_Policy, frozen=True, tag="hyperband"):
    pass


class RasdaSettings(_Policy, frozen=True, tag="rasda"):
    initial_atoms: int = 1
    scaling_factor: int | None = None
    """f; None: the reduction factor."""


class FixedSplitSettings(_Policy, frozen=True, tag="fixed_split"):
    explore_fraction: float = 0.3
    num_trials: int | None = None
    """Configurations of the exploration; None: as many as come."""


class HyperSchedSettings(_Policy, frozen=True, tag="hypersched"):
    """Parity with the 2020 program (algorithms.md section 1); the last five options improve on it."""

    speculation: bool = True
    allocation: Literal["uniform", "top", "softmax", "random", "none"] = "uniform"
    entrance: Literal["closing", "reversible", "none"] = "closing"
    """"none": new trials until the deadline (the paper's ablation)."""
    explore_fraction: float | None = None
    """Fixed exploration fraction f in place of the entrance rule: closed when Tleft < T (1 - f)."""
    ignore_overhead: bool = False
    assume_linear: bool = False
    cool_down: int = 5
    margin: float = 1.1
    keep_paused: bool = False
    last_resort: Literal["first", "best"] = "first"
    """Which paused trial goes on when atoms are free, nobody can be promoted and nobody new comes: the first created, as Tune's
    scheduler did in 2020 (algorithms.md 1.7), or the one with the highest score."""
    protect_leader: bool = False
    shrink_pays: bool = False


class DeadlineSettings(_Policy, frozen=True, tag="deadline"):
    """Our own policy: see `policies/deadline.py`. Priors first, then switches for ablations."""

    growth: float = 1.5
    """Growth from k to 2 k iterations, in spreads among trials, until it has been measured."""
    prior_weight: float = 2.0
    """Trials that `growth` counts as, while it is measured to tell whether choice or training matters more."""
    scouts: bool = True
    """The first trials start on the root of half of all atoms each, until an iteration has shown how long it takes; False: on one."""
    untypical: int = 1
    """Iterations at the start of a training whose time says little about the others'."""
    leap: int = 3
    """Where choice matters more, a trial grows by this factor at least, or to the largest useful size."""
    reach: float = 0.5
    """There, a trial grows only if it will have trained at least so many times as far as the best result so far had."""
    trained: float = 0.8
    """Where training matters more, contenders are narrowed to so few that each can do this share of R."""
    enough: int = 96
    """There, so many iterations are a whole training, whatever R is; the field is not narrowed where each can do half of one."""
    explore: float = 0.35
    """There, the share of the deadline after which the field is narrowed."""
    wide: int = 4
    """There, the field before that is so many times as wide."""
    patience: float = 0.25
    """Where training matters more, a trial that has not improved for this share of its way to its best score (and 10 iterations) makes
    room for a newcomer that can come as far; 0: never."""
    turnover: bool = True
    """Search by choice where choice outweighs training; False: as if training always did."""
    narrow: bool = True
    """Narrow the field where training outweighs choice."""


PolicySettings: TypeAlias = (
    FifoSettings
    | AshaSettings
    | ShaSettings
    | HyperbandSettings
    | RasdaSettings
    | FixedSplitSettings
    | HyperSchedSettings
    | DeadlineSettings
)


class ScalingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """s(atoms): throughput relative to one atom, by linear interpolation, clamped at the ends."""

    assume: Literal["linear", "sqrt", "none"] | dict[int, float] | None = "linear"
    """None: measured during the search."""
    spans: dict[str, dict[int, float]] | None = None
    """s(atoms, span) of a profile: span "island" | "node" | "switch" | "beyond" -> atoms -> s."""
    restart_s: dict[int, float] = {}
    """Of a profile: atoms -> seconds of a start, end to end; counts until one has been measured."""


class TimeoutSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. None switches a limit off (the simulator)."""

    start_s: float | None = 300.0
    """From StartTrial to TrialStarted."""
    silence_s: float | None = 1800.0
    """Longest iteration: no result for so long and the incarnation is killed."""
    preempt_grace_s: float | None = 120.0
    """From PreemptTrial to the exit."""
    kill_wait_s: float | None = 10.0
    """From KillTrial to the exit; then the atoms are quarantined and the trial goes on elsewhere."""
    deadline_margin_s: float = 1.0
    """Added to the measured save time when the last checkpoint is planned."""


class RetrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    crashed: int = 1
    """max_retries for CRASHED, OUT_OF_MEMORY and KILLED (hung)."""
    node_failed: int = 3
    launch_failed: int = 3
    fail_fast: int = 4
    """The experiment fails when the first so many trials all crash before a report. 0: never."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the core needs to know besides events."""

    policy: PolicySettings
    mode: Mode = Mode.MAX
    metric_window: int = 1
    """The score is the mean of the last so many reports."""
    grace_period: int = 1
    """r, iterations."""
    max_iterations: int = 100
    """R, iterations."""
    reduction_factor: int = 4
    """eta >= 2."""
    multiple_of: int = 2
    """Sizes are 1 and its multiples."""
    max_trial_atoms: int | None = None
    seed: int = 0
    num_trials: int | None = None
    """Most configurations asked of the sampler; None: until it is exhausted."""
    request_ahead: bool = True
    """Ask for a configuration when an atom is free (True), or all `num_trials` at the start (False: parity)."""
    scaling: ScalingSettings = ScalingSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retries: RetrySettings = RetrySettings()
    save_at_deadline: bool = True
    """False: results count until the deadline and nobody saves (parity simulations)."""
