"""Saturating curves that cross: who leads early need not lead late.

    score(k) = A (1 - exp(-(k / tau)^0.7)) + 0.005 z_k,   A ~ U(0.2, 0.95),  tau ~ log-uniform(10, 400), independent

Here search rather than training time is the bottleneck, so a scheduler that ends its exploration early loses: the
counterweight to the paper's own workload.
"""

from __future__ import annotations

import math

import numpy as np

from hpcsched.core.events import Config
from hpcsched.sim.noise import Noise, TrialNoise

_BATCH = 256


class CrossingCurve:
    """One trial."""

    __slots__ = ("_height", "_noise", "_tau", "length", "recorded", "step_s")

    def __init__(self, trial_id: int, height: float, tau: float, noise: Noise | None, step_s: float) -> None:
        self._height = height
        self._tau = tau
        self._noise = None if noise is None else TrialNoise(noise, trial_id)
        self.step_s: float | None = step_s
        self.length: int | None = None
        self.recorded: int | None = None

    def metric(self, iteration: int) -> float:
        value = self._height * (1.0 - math.exp(-((iteration / self._tau) ** 0.7)))
        noise = self._noise
        return value if noise is None else value + 0.005 * noise.z(iteration)

    def duration_s(self, iteration: int) -> float:  # noqa: ARG002  # the protocol: here every iteration takes the same
        assert self.step_s is not None
        return self.step_s


class CrossingWorkload:
    """All trials of one seed."""

    def __init__(self, seed: int, *, step_s: float = 0.1, noise: bool = True) -> None:
        self._noise = Noise(seed) if noise else None
        self._step_s = step_s
        self._seed = seed
        self._drawn: list[tuple[float, float]] = []

    def config(self, trial_id: int) -> Config:
        while len(self._drawn) <= trial_id:
            rng = np.random.default_rng([self._seed & 0xFFFFFFFF, 2, len(self._drawn) // _BATCH])
            heights = rng.uniform(0.2, 0.95, _BATCH).tolist()
            taus = np.exp(rng.uniform(math.log(10), math.log(400), _BATCH)).tolist()
            self._drawn.extend(zip(heights, taus, strict=True))
        height, tau = self._drawn[trial_id]
        return {"A": height, "tau": tau}

    def curve(self, trial_id: int, config: Config) -> CrossingCurve:
        return CrossingCurve(trial_id, config["A"], config["tau"], self._noise, self._step_s)
