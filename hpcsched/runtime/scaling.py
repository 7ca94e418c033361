"""Learning rate and batch size when a trial gets more ranks, or fewer.

Theory. With W ranks of b samples a step sees W b samples. Its gradient is the mean of W times as many, so its noise is
1/sqrt(W) as large: multiplying the learning rate by sqrt(W) keeps the noise of a step (what HyperSched does for SGD),
multiplying it by W keeps the path of an epoch (Goyal et al. 2017; what RASDA does for SGD, with the square root for Adam).
Both only hold for a rate that is reached slowly, so after a resize it moves by at most `growth` (10 %) of its last value an
epoch, up or down, and stops exactly at its target. Where the *global* batch is kept instead, a step is the same step at
any world size and nothing is to be scaled.

::

    rule                       batch        learning rate               ramp after a resize
    ScalingRule()              a rank       times sqrt(W)               geometric, HyperSched paper, section 4
    ScalingRule(ramp=ADDITIVE) a rank       times sqrt(W)               by min(way / 5, 10 % of the start) an epoch, HyperSched's code
    rasda(optimizer)           a rank       times W (Adam: sqrt(W))     from half to all of it over two epochs
    ScalingRule(batch=GLOBAL)  all ranks    as it is                    none

`Scaling` applies the rule to any torch optimizer. It does not touch what the optimizer's groups hold: it multiplies their
`lr` for the moment of each `optimizer.step()` (torch's step hooks) and puts it back. So any scheduler works unaware of it,
whether it computes a rate from the last one or from the first; checkpoints hold the plain rates; and it does not matter in
which order things are restored.
"""

from __future__ import annotations

import enum
from typing import Any, Protocol

import msgspec
import torch

from hpcsched.errors import TrialError


class Batch(enum.Enum):
    """What `batch_size` counts."""

    PER_RANK = "per_rank"
    GLOBAL = "global"


class LearningRate(enum.Enum):
    """By which power of the batch's growth the learning rate grows."""

    SQRT = "sqrt"
    LINEAR = "linear"
    NONE = "none"


class Ramp(enum.Enum):
    """How the factor gets to its target."""

    GEOMETRIC = "geometric"
    ADDITIVE = "additive"
    HALF = "half"
    """From half of the target (never less than before a growth), in equal steps over `ramp_epochs`: RASDA's warm-up after a
    resize, which there had no cap at 1."""
    NONE = "none"


_POWER = {LearningRate.SQRT: 0.5, LearningRate.LINEAR: 1.0, LearningRate.NONE: 0.0}
_ADDITIVE_STEPS = 5
"""HyperSched's code goes a fifth of the way an epoch, where that is less than 10 % of the start."""


class ScalingRule(msgspec.Struct, frozen=True):
    """Values only; see the table above. `growth`: largest change of the factor an epoch, above 0."""

    batch: Batch = Batch.PER_RANK
    learning_rate: LearningRate = LearningRate.SQRT
    ramp: Ramp = Ramp.GEOMETRIC
    growth: float = 0.1
    ramp_epochs: int = 2
    """For `Ramp.HALF`."""

    def __post_init__(self) -> None:
        if not 0 < self.growth < 10:
            raise TrialError(f"scaling: growth={self.growth} is no share of the learning rate such as 0.1")
        if self.ramp_epochs < 1:
            raise TrialError(f"scaling: ramp_epochs={self.ramp_epochs}; at least 1")

    def global_batch_size(self, batch_size: int, num_ranks: int) -> int:
        """Samples of one step over all ranks."""
        return batch_size if self.batch is Batch.GLOBAL else batch_size * num_ranks

    def target(self, num_ranks: int) -> float:
        """What the learning rate is multiplied by once the ramp is over; 1.0 for one rank."""
        if self.batch is Batch.GLOBAL:
            return 1.0
        return float(num_ranks ** _POWER[self.learning_rate])

    def after(self, start: float, target: float, factor: float) -> float:
        """The factor of the next epoch on the way from `start` to `target`, now at `factor`. Never beyond the target."""
        match self.ramp:
            case Ramp.NONE:
                return target
            case Ramp.GEOMETRIC:
                moved = factor * (1 + self.growth) if target > factor else factor / (1 + self.growth)
            case Ramp.ADDITIVE:
                step = min(abs(target - start) / _ADDITIVE_STEPS, self.growth * start)
                moved = factor + step if target > factor else factor - step
            case Ramp.HALF:
                if target < factor:
                    return target
                first = max(start, target / 2)
                moved = first if factor < first else factor + (target - first) / self.ramp_epochs
        beyond = moved >= target if target > factor else moved <= target
        # The last of five equal steps may miss the target by a rounding error: it is there.
        return target if beyond or abs(moved - target) <= 1e-9 * target else moved


def rasda(optimizer: torch.optim.Optimizer) -> ScalingRule:
    """What the RASDA program does: the batch of a rank stays, the rate grows with the ranks (SGD) or their root (Adam)."""
    adam = "adam" in type(optimizer).__name__.lower()
    return ScalingRule(
        learning_rate=LearningRate.SQRT if adam else LearningRate.LINEAR,
        ramp=Ramp.HALF,
    )


class Schedule(Protocol):
    """A torch learning rate scheduler, or whatever behaves like one."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Scaling:
    """Scales `optimizer` (and steps `schedule`, when one is given, once an epoch). Track it.

    ::

        scaling = trial.scaling(sgd, batch_size=128, schedule=MultiStepLR(sgd, [60, 120, 160], 0.2))
        sampler = trial.sampler(len(data), global_batch_size=scaling.global_batch_size)
        trial.track(model=net, optimizer=sgd, scaling=scaling, sampler=sampler)
        ...
        scaling.step()          # at the end of each epoch, in place of schedule.step()

    Made at another world size than before, it begins to move with the next epoch it does: the first epoch after a resize
    runs at one step of the ramp, so that in no epoch the rate moves by more than one.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        batch_size: int,
        num_ranks: int,
        rule: ScalingRule = ScalingRule(),  # noqa: B008 - frozen
        schedule: Schedule | None = None,
    ) -> None:
        if batch_size < 1:
            raise TrialError(f"scaling: batch_size={batch_size}; at least 1 sample")
        if rule.batch is Batch.GLOBAL and batch_size < num_ranks:
            raise TrialError(f"scaling: a global batch of {batch_size} cannot be shared by {num_ranks} ranks")
        self._optimizer = optimizer
        self._schedule = schedule
        self._rule = rule
        self.global_batch_size = rule.global_batch_size(batch_size, num_ranks)
        """Samples of one step over all ranks, at this world size."""
        self._target = rule.target(num_ranks)
        self._factor = 1.0
        self._last = 1.0
        """Factor of the last epoch that was done."""
        self._start = 1.0
        self._plain: list[Any] | None = None
        self._aim(self._target)
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    @property
    def factor(self) -> float:
        """What the learning rate is multiplied by now."""
        return self._factor

    @property
    def target(self) -> float:
        """Where `factor` is going."""
        return self._target

    @property
    def learning_rates(self) -> list[float]:
        """What the optimizer's groups really step with now."""
        return [float(group["lr"]) * self._factor for group in self._optimizer.param_groups]

    def step(self) -> None:
        """An epoch is done: the schedule's step, and one step of the ramp."""
        if self._schedule is not None:
            self._schedule.step()
        self._last = self._factor
        self._move()

    def state_dict(self) -> dict[str, Any]:
        return {
            "factor": self._factor,
            "start": self._start,
            "target": self._target,
            "last": self._last,
            "schedule": None if self._schedule is None else self._schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there to this world size's own target. Raises TrialError when the schedule is gone or new."""
        if (state["schedule"] is None) != (self._schedule is None):
            raise TrialError(
                "scaling: the checkpoint was saved with a schedule and this script has none, or the reverse"
            )
        if self._schedule is not None:
            self._schedule.load_state_dict(state["schedule"])
        mine = self._target
        self._factor, self._last = state["factor"], state["last"]
        self._start, self._target = state["start"], state["target"]
        if mine != self._target:
            self._aim(mine)

    def _aim(self, target: float) -> None:
        """What the epoch now begun has of the former ramp is taken back: it goes the new way from the last epoch."""
        self._target = target
        self._factor = self._start = self._last
        self._move()

    def _move(self) -> None:
        if self._factor != self._target:
            self._factor = self._rule.after(self._start, self._target, self._factor)

    def _before_step(self, *_: Any) -> None:
        self._put_back()  # a step that raised has left it scaled
        groups = self._optimizer.param_groups
        self._plain = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * self._factor

    def _after_step(self, *_: Any) -> None:
        self._put_back()

    def _put_back(self) -> None:
        if self._plain is not None:
            for group, plain in zip(self._optimizer.param_groups, self._plain, strict=False):
                group["lr"] = plain
            self._plain = None
