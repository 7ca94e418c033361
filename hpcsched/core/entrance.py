"""May new (and paused) trials still start? The entrance policy of HyperSched (algorithms.md 1.7, T11 to T13).

A newcomer changes the outcome only if it can overtake the leader before the deadline. It meets the leader at the
leader's next decision, which successive halving puts at eta times the leader's age T'; or it finishes outright, R
iterations of Ta each. So the entrance is closed when

    T_left < min(eta (T' - S), R Ta)

S being the 90th percentile of the distinct set-up times, T' the longest accumulated training time, Ta the median
time of an iteration on one atom. The paper prints the inequality the other way round; taken literally nothing would
start after the first result. The program (and slide 61) close as above; equality is open.
"""

from __future__ import annotations

import msgspec

from hpcsched.core.percentile import SampledPercentile
from hpcsched.core.warmth import Warmth


class Gate(msgspec.Struct, frozen=True):
    """The answer, with the numbers compared. It is asked for after every event and seldom read: words come last."""

    is_open: bool
    words: str
    """With places for the seconds left and the seconds needed."""
    left_s: float = 0.0
    needed_s: float = 0.0

    @property
    def because(self) -> str:
        return self.words.format(self.left_s, self.needed_s)


CLOSED = "the entrance is closed: {:.6g} s are left and a newcomer needs {:.6g} s to catch up"
OPEN = "the entrance is open: {:.6g} s are left, {:.6g} s are needed"
CLOSED_BY_FRACTION = "the entrance is closed: {:.6g} s are left, less than the {:.6g} s kept for exploitation"
OPEN_BY_FRACTION = "the entrance is open: {:.6g} s are left, {:.6g} s are kept for exploitation"


class Entrance:
    """What has been observed, and the bound that follows from it."""

    __slots__ = (
        "_cold_setups",
        "_distinct",
        "_eta",
        "_ignore_overhead",
        "_iterations",
        "_max_iterations",
        "_unknown_s",
        "_warm_setups",
        "_warmth",
        "longest_s",
    )

    def __init__(
        self,
        *,
        eta: int,
        max_iterations: int,
        ignore_overhead: bool,
        expected_overhead_s: float | None = None,
    ) -> None:
        """`expected_overhead_s`: S until a start was measured, of a profile; None: -1, as in 2020."""
        self._eta = eta
        self._unknown_s = -1.0 if expected_overhead_s is None else expected_overhead_s
        self._max_iterations = max_iterations
        self._ignore_overhead = ignore_overhead
        self._distinct: set[tuple[bool, float]] = set()
        self._cold_setups = SampledPercentile(9, 10)
        self._warm_setups = SampledPercentile(9, 10)
        self._warmth = Warmth()
        self._iterations = SampledPercentile(1, 2)
        self.longest_s: float | None = None
        """T': over all results of all trials; None before the first."""

    def observe_setup(self, setup_time_s: float, *, warm: bool = False) -> None:
        """`warm`: a start from a spare (see `warmth`)."""
        self._warmth.observe(warm=warm)
        if (warm, setup_time_s) not in self._distinct:
            self._distinct.add((warm, setup_time_s))
            (self._warm_setups if warm else self._cold_setups).add(setup_time_s)

    def observe_one_atom_iteration(self, time_this_iter_s: float) -> None:
        self._iterations.add(time_this_iter_s)

    def observe_training(self, training_s: float) -> None:
        if self.longest_s is None or training_s > self.longest_s:
            self.longest_s = training_s

    @property
    def overhead_s(self) -> float:
        """S: 90th percentile of the distinct set-up times; -1 before the first (as in 2020; or a profile's), 0 when ignored."""
        if self._ignore_overhead:
            return 0.0
        value = self._warmth.expected_s(warm_s=self._warm_setups.value(), cold_s=self._cold_setups.value())
        return self._unknown_s if value is None else value

    def bound_s(self, longest_s: float | None) -> float:
        """min(eta (T' - S), R Ta), for a leader that has trained `longest_s` (None: nobody has)."""
        age = -1.0 if longest_s is None else longest_s
        catch_up = self._eta * (age - self.overhead_s)
        one_iteration = self._iterations.value()
        if one_iteration is None:
            return catch_up
        return min(catch_up, self._max_iterations * one_iteration)

    def gate(self, *, time_left_s: float | None, longest_s: float | None) -> Gate:
        """Open or closed now."""
        if time_left_s is None:
            return Gate(True, "the entrance is open: no deadline")
        bound = self.bound_s(longest_s)
        if time_left_s < bound:
            return Gate(False, CLOSED, time_left_s, bound)
        return Gate(True, OPEN, time_left_s, bound)


def fixed_gate(*, time_left_s: float | None, deadline_s: float | None, explore_fraction: float) -> Gate:
    """The ablation with a fixed exploration fraction f: closed when T_left < T (1 - f)."""
    if time_left_s is None or deadline_s is None:
        return Gate(True, "the entrance is open: no deadline")
    rest = deadline_s * (1.0 - explore_fraction)
    if time_left_s < rest:
        return Gate(False, CLOSED_BY_FRACTION, time_left_s, rest)
    return Gate(True, OPEN_BY_FRACTION, time_left_s, rest)
