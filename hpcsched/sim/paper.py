"""The synthetic workload of the HyperSched paper (Liaw et al., SoCC 2019, section 6; the curve is Optimus's).

With b0 ~ Exponential(mean 0.1), b1 and b2 ~ U(0, 1) and z standard normal, drawn once a (trial, iteration k)::

    loss(k)  = 1 / (b0 k / 100 + 0.1 b1 + 0.5) + 0.01 b2 + |0.005 z_k|
    score(k) = (2 - loss(k)) / 2                                          (maximise)

An iteration takes `step_s` (0.1) on one atom. Curves almost never cross: b0 decides.
"""

from __future__ import annotations

import numpy as np

from hpcsched.core.events import Config
from hpcsched.sim.noise import Noise, TrialNoise

MEAN_B0 = 0.1
NOISE = 0.005
_BATCH = 256


class PaperCurve:
    """One trial of the synthetic workload."""

    __slots__ = ("_b0", "_b1", "_b2", "_noise", "length", "recorded", "step_s")

    def __init__(
        self, trial_id: int, b0: float, b1: float, b2: float, noise: Noise | None, step_s: float
    ) -> None:
        self._b0 = b0 / 100
        self._b1 = 0.1 * b1 + 0.5
        self._b2 = 0.01 * b2
        self._noise = None if noise is None else TrialNoise(noise, trial_id)
        self.step_s: float | None = step_s
        self.length: int | None = None
        self.recorded: int | None = None

    def metric(self, iteration: int) -> float:
        value = 1.0 - 0.5 * (1.0 / (self._b0 * iteration + self._b1) + self._b2)
        noise = self._noise
        return value if noise is None else value - 0.0025 * abs(noise.z(iteration))

    def duration_s(self, iteration: int) -> float:  # noqa: ARG002  # the protocol: here every iteration takes the same
        assert self.step_s is not None
        return self.step_s


class PaperWorkload:
    """All trials of one seed. `noise = False` leaves z out (for tests against the formula)."""

    def __init__(self, seed: int, *, step_s: float = 0.1, noise: bool = True) -> None:
        self._noise = Noise(seed) if noise else None
        self._step_s = step_s
        self._seed = seed
        self._drawn: list[tuple[float, float, float]] = []

    def config(self, trial_id: int) -> Config:
        while len(self._drawn) <= trial_id:
            rng = np.random.default_rng([self._seed & 0xFFFFFFFF, 1, len(self._drawn) // _BATCH])
            b0 = rng.exponential(MEAN_B0, _BATCH).tolist()
            b1 = rng.random(_BATCH).tolist()
            b2 = rng.random(_BATCH).tolist()
            self._drawn.extend(zip(b0, b1, b2, strict=True))
        first, second, third = self._drawn[trial_id]
        return {"b0": first, "b1": second, "b2": third}

    def curve(self, trial_id: int, config: Config) -> PaperCurve:
        return PaperCurve(trial_id, config["b0"], config["b1"], config["b2"], self._noise, self._step_s)
