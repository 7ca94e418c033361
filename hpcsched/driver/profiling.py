"""`hpcsched profile`: how fast one configuration trains at each size and span, and what its restarts cost.

It is a run like any other (the same launches, checkpoints, time limits and log), in which one trial is paused after some
iterations and goes on elsewhere: from one atom upwards, at each size on one placement of each span. So start-up, restore and save
are those of the search to come. The policy is `Tour`; the pool hands out what the tour asks for. Should the trial fail
somewhere (too little memory on one atom, say), a new one with the same configuration goes on at the next stop.

What comes out is read from the log (`profile_of_log`): s(atoms, span) = t(1) / t(atoms, span), t being the median time of an
iteration without the first of each incarnation, which pays for warming up.
"""

# ruff: noqa: ARG002 - not every implementation of a protocol needs all of its parameters
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec

from hpcsched.config.profile import profile_of_run
from hpcsched.core import events as ev
from hpcsched.core.actions import StartTrial
from hpcsched.core.enums import AtomState, TrialState
from hpcsched.core.events import Config
from hpcsched.core.ids import TrialId
from hpcsched.core.scaling import Point
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import FifoSettings, RetrySettings, Settings
from hpcsched.core.sizes import Sizes
from hpcsched.core.view import Decision, Drop, Pause, Start, Stop, TrialView, View
from hpcsched.core.words import atoms
from hpcsched.driver.roles import Roles
from hpcsched.errors import InputError
from hpcsched.eventlog.records import Note, Record, Step
from hpcsched.search.samplers import Sampler
from hpcsched.topology.machine import AtomId, Machine, Placement
from hpcsched.topology.points import placements_by_span
from hpcsched.topology.pool import Pool
from hpcsched.topology.span import SPANS, Span, span_of


class Halt(NamedTuple):
    """One stop of the tour."""

    size: int
    span: Span
    placement: Placement


def tour_of(machine: Machine, sizes: Sizes, chosen: Sequence[int] = ()) -> list[Halt]:
    """Sizes from one atom upwards, doubling, and the largest; or one atom and the chosen ones. At each, every span.

    Raises InputError for a chosen size that no trial can have.
    """
    largest = sizes.floor(len(machine.atoms))
    wrong = [size for size in chosen if size < 1 or size > largest or not sizes.allows(size)]
    if wrong:
        allowed = ", ".join(str(size) for size in range(1, largest + 1) if sizes.allows(size))
        raise InputError(
            f"--sizes: {', '.join(map(str, wrong))}: no size of a trial here; of {atoms(len(machine.atoms))}, multiple_of = "
            f"{sizes.multiple_of}, they are {allowed}"
        )
    if chosen:
        wanted = {1, *chosen}
    else:
        wanted = {1, largest}
        size = 2
        while size < largest:
            wanted.add(sizes.floor(size))
            size *= 2
    return [
        Halt(size, span, placement)
        for size in sorted(wanted)
        if sizes.allows(size) and size <= largest
        for span, placement in placements_by_span(machine, size).items()
    ]


class TourPool(Pool):
    """Hands out the placement that the tour asks for, where it is free."""

    def __init__(self, machine: Machine, wanted: Callable[[], Placement | None]) -> None:
        super().__init__(machine)
        self._wanted = wanted

    def find(self, size: int, *, held: Collection[AtomId] = ()) -> Placement | None:
        placement = self._wanted()
        if placement is None or len(placement.atoms) != size or not all(map(self.is_free, placement.atoms)):
            return None
        return placement


class Tour:
    """The policy: one trial at a time, `num_iterations` at each halt."""

    def __init__(self, halts: Sequence[Halt], num_iterations: int) -> None:
        self._halts = halts
        self._num_iterations = num_iterations
        self._next = 0
        self._num_reports = 0
        self._waiting: TrialId | None = None
        self._is_out = False
        """Somebody has been started, and has not left."""

    @property
    def placement(self) -> Placement | None:
        return self._halts[self._next].placement if self._next < len(self._halts) else None

    def _go_on(self) -> None:
        self._next += 1
        self._num_reports = 0

    def trial_added(self, view: View, trial: TrialView) -> None:
        self._waiting = trial.trial_id

    def trial_started(self, view: View, trial: TrialView) -> None:
        self._num_reports = 0

    def result_reported(self, view: View, trial: TrialView) -> Sequence[Decision]:
        self._num_reports += 1
        if self._num_reports < self._num_iterations:
            return ()
        self._go_on()
        why = f"{self._num_iterations} iterations are enough here"
        if self.placement is None:
            return (Stop(trial.trial_id, f"{why}, and this was the last halt"),)
        return (Pause(trial.trial_id, why),)

    def trial_left(self, view: View, trial: TrialView) -> None:
        self._is_out = False
        if trial.state in {TrialState.PAUSED, TrialState.PENDING}:
            self._waiting = trial.trial_id
        elif self.placement is not None and (trial.state is TrialState.FAILED or self._num_reports):
            self._go_on()  # it fails here, or its iterations are used up: a new one goes on

    def num_wanted(self, view: View) -> int:
        return int(self._waiting is None and not self._is_out and self.placement is not None)

    def next_start(self, view: View) -> Start | Drop | None:
        assert isinstance(view, Scheduler)
        if self._waiting is None:
            return None
        while (placement := self.placement) is not None:
            if all(view.atom_state(atom_id) is AtomState.FREE for atom_id in placement.atoms):
                waiting, self._waiting = self._waiting, None
                self._is_out = True
                return Start(waiting, len(placement.atoms), placement.because)
            self._go_on()  # a node of it is down
        waiting, self._waiting = self._waiting, None
        return Drop(waiting, "there is nothing left to be measured")

    def idle_moves(self, view: View) -> Sequence[Decision]:
        return ()

    def finished(self, view: View) -> str | None:
        return "every halt has been visited" if self.placement is None else None


class _Same:
    """The source that gives one configuration for ever."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def configuration(self, index: int) -> Config | None:
        return dict(self._config)

    def tell(
        self, trial_id: int, config: Config, training_iteration: int, score: float | None, state: TrialState
    ) -> None:
        pass


def touring(num_iterations: int, sizes: Sequence[int] = ()) -> Roles:
    """The roles of a profile's run. The configuration is the search's first."""

    def scheduler(settings: Settings, machine: Machine) -> Scheduler:
        allowed = Sizes.within(settings.multiple_of, settings.max_trial_atoms, machine.max_trial_atoms)
        tour = Tour(tour_of(machine, allowed, sizes), num_iterations)
        changed = msgspec.structs.replace(
            settings,
            policy=FifoSettings(),  # a name for the log: the tour decides
            num_trials=None,
            request_ahead=True,
            retries=RetrySettings(crashed=0, node_failed=0, launch_failed=1, fail_fast=0),
        )
        return Scheduler(changed, policy=tour, make_pool=lambda each: TourPool(each, lambda: tour.placement))

    return Roles(scheduler=scheduler, sampler=lambda given: Sampler(_Same(given.ask(0) or {})))


class _Incarnation(msgspec.Struct):
    size: int
    span: Span
    times_s: list[float] = []
    saves_s: list[float] = []
    setup_s: float | None = None
    parts: dict[str, float] = {}


def profile_of_log(records: Iterable[Record]) -> tuple[dict[str, Any] | None, list[str]]:
    """(the document that `[scaling] profile` reads, lines for people). None: nothing but one size was measured."""
    machine: Machine | None = None
    seen: dict[tuple[int, int], _Incarnation] = {}
    for record in records:
        match record:
            case Note(topic="setup", trial_id=trial_id, incarnation=incarnation, data=data):
                if (key := (trial_id or 0, incarnation or 0)) in seen:
                    seen[key].parts = seen[key].parts | {
                        name: float(value)
                        for name, value in data.items()
                        if name.endswith("_s") and isinstance(value, (int, float))
                    }
            case Step(event=event, actions=actions):
                if isinstance(event, ev.ExperimentBegan | ev.ExperimentResumed):
                    machine = event.machine
                if isinstance(event, ev.TrialStarted | ev.ResultReported | ev.CheckpointSaved):
                    known = seen.get((event.trial_id, event.incarnation))
                    if known is not None:
                        _take(known, event)
                for action in actions:
                    if isinstance(action, StartTrial):
                        assert machine is not None
                        seen[action.trial_id, action.incarnation] = _Incarnation(
                            len(action.placement.atoms), span_of(machine, action.placement), [], [], None, {}
                        )
            case _:
                pass
    return _document(list(seen.values()))


def _take(known: _Incarnation, event: ev.TrialStarted | ev.ResultReported | ev.CheckpointSaved) -> None:
    match event:
        case ev.TrialStarted():
            known.setup_s = event.setup_time_s
        case ev.ResultReported():
            known.times_s.append(event.time_this_iter_s)
        case ev.CheckpointSaved():
            known.saves_s.append(event.save_time_s)


def _document(seen: list[_Incarnation]) -> tuple[dict[str, Any] | None, list[str]]:
    times: dict[tuple[int, Span], list[float]] = {}
    by_size: dict[int, list[_Incarnation]] = {}
    for one in seen:
        by_size.setdefault(one.size, []).append(one)
        usual = [took for took in (one.times_s[1:] or one.times_s) if took > 0]
        if usual:
            times.setdefault((one.size, one.span), []).extend(usual)
    if not times:
        return None, ["nothing was measured: no iteration was reported"]
    order = sorted(times, key=lambda key: (key[0], SPANS.index(key[1])))
    least = order[0]
    one_atom_s = median(times[least]) * least[0]
    points = [
        Point(size, span, one_atom_s / median(times[size, span]), len(times[size, span]))
        for size, span in order
    ]
    restart_s = {size: fmean(setups) for size, all_ in by_size.items() if (setups := _known(all_, "setup_s"))}
    lines = [
        f"{point.size:6d} atoms  span {point.span:7s} {median(times[point.size, point.span]):10.4g} s an iteration  "
        f"{point.speedup:7.2f} times one atom ({point.num} reports)"
        for point in points
    ]
    if least[0] > 1:
        lines.append(
            f"nothing was measured on one atom: {least[0]} atoms count as {least[0]} times as fast as one"
        )
    costs: dict[str, dict[str, dict[str, float]]] = {}
    for size in sorted(by_size):
        mine = by_size[size]
        saves = [save for one in mine for save in one.saves_s]
        parts = {
            name: round(fmean(values), 4)
            for name in sorted({name for one in mine for name in one.parts})
            if (values := [one.parts[name] for one in mine if name in one.parts])
        }
        row = {"checkpoint_s": {"mean": round(fmean(saves), 4)} if saves else {}, "parts": parts}
        costs[str(size)] = {name: values for name, values in row.items() if values}
        if size in restart_s:
            told = ", ".join(f"{name.removesuffix('_s')} {value:.3f}" for name, value in parts.items())
            save = f", a checkpoint {fmean(saves):.3f} s" if saves else ""
            lines.append(
                f"{size:6d} atoms  a start {restart_s[size]:.3f} s{save}" + (f"  ({told})" if told else "")
            )
    more = [point for point in points if point.size > 1]
    return profile_of_run(more, restart_s, more={"costs": costs}), lines


def _known(all_: Iterable[_Incarnation], name: str) -> list[float]:
    return [value for one in all_ if (value := getattr(one, name)) is not None]
