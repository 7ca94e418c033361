"""Did trials reach farther than they had to? `python -m analysis.placements RUN [--json]`.

Replays a run's events through the core and looks at each launch: over how many leaf switches and nodes it was placed,
what was the least that the atoms allowed which were free (or the trial's own) at that moment, found by trying sets of
switches, and what first fit in node order would have taken of the very same atoms. Shares are of trial-seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from analysis.topology import PlacingScheduler
from hpcsched.core.actions import StartTrial
from hpcsched.core.events import TrialExited
from hpcsched.core.scheduler import Scheduler
from hpcsched.errors import InputError
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Header, Record, Step
from hpcsched.runfolder import RunFolder
from hpcsched.topology.machine import AtomId, Machine, Placement
from hpcsched.topology.pool import Pool

Reach = tuple[int, int]
"""(leaf switches, nodes), compared in this order."""


class Launch(msgspec.Struct, frozen=True):
    """One incarnation."""

    trial_id: int
    incarnation: int
    num_atoms: int
    lasted_s: float
    reach: Reach
    least: Reach
    """That the free atoms allowed."""
    first_fit: Reach


class Shares(msgspec.Struct, frozen=True):
    """Of all trial-seconds."""

    num_launches: int
    trial_s: float
    over_several_nodes: float
    too_many_nodes_or_switches: float
    """Reached farther than the free atoms allowed."""
    first_fit_would: float
    """First fit would have reached farther than they allowed."""


def reach_of(machine: Machine, atoms: Iterable[AtomId]) -> Reach:
    names = {machine.atoms[atom].node for atom in atoms}
    return len({node.switches for node in machine.nodes if node.name in names}), len(names)


def least_reach(machine: Machine, usable: Collection[AtomId], size: int) -> Reach:
    """The least (leaf switches, nodes) on which `size` of the usable atoms lie. By trying: for machines with few switches."""
    free: dict[str, int] = {}
    for atom in usable:
        name = machine.atoms[atom].node
        free[name] = free.get(name, 0) + 1
    leaves: dict[tuple[str, ...], list[int]] = {}
    for node in machine.nodes:
        if node.name in free:
            leaves.setdefault(node.switches, []).append(free[node.name])
    for num_leaves in range(1, len(leaves) + 1):
        fewest: list[int] = []
        for chosen in combinations(leaves.values(), num_leaves):
            left = size
            for num_nodes, here in enumerate(
                sorted((n for leaf in chosen for n in leaf), reverse=True), start=1
            ):
                left -= here
                if left <= 0:
                    fewest.append(num_nodes)
                    break
        if fewest:
            return num_leaves, min(fewest)
    raise ValueError(f"{len(usable)} atoms are usable, {size} were asked for")


class Watched(Pool):
    """Our pool, which remembers for each placement that it gave what else was possible."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.machine = machine
        self.seen: dict[tuple[AtomId, ...], tuple[Reach, Reach]] = {}
        """Atoms -> (least reach, first fit's), of the latest placement on these atoms."""

    def find(self, size: int, *, held: Collection[AtomId] = ()) -> Placement | None:
        found = super().find(size, held=held)
        if found is not None:
            mine = set(held)
            usable = [a.atom_id for a in self.machine.atoms if a.atom_id in mine or self.is_free(a.atom_id)]
            self.seen[found.atoms] = (
                least_reach(self.machine, usable, size),
                reach_of(self.machine, usable[:size]),
            )
        return found


def launches_of(records: Iterable[Record]) -> list[Launch]:
    """Every incarnation in the journal that has ended, in order of its end; those that live at the last event end there."""
    scheduler: Scheduler | None = None
    pools: list[Watched] = []

    def make_pool(machine: Machine) -> Watched:
        pools.append(Watched(machine))
        return pools[-1]

    live: dict[tuple[int, int], tuple[float, StartTrial]] = {}
    launches: list[Launch] = []

    def ends(key: tuple[int, int], now: float) -> None:
        began, start = live.pop(key)
        atoms = start.placement.atoms
        machine = pools[-1].machine
        least, first_fit = pools[-1].seen.get(atoms) or (reach_of(machine, atoms),) * 2
        launches.append(Launch(*key, len(atoms), now - began, reach_of(machine, atoms), least, first_fit))

    now = 0.0
    for record in records:
        if isinstance(record, Header) and scheduler is None:
            scheduler = PlacingScheduler(record.settings, make_pool)
        elif isinstance(record, Step):
            if scheduler is None:
                raise InputError("the journal begins without a header")
            now = record.event.time
            actions = scheduler.handle(record.event)
            if isinstance(record.event, TrialExited):
                ended = (record.event.trial_id, record.event.incarnation)
                if ended in live:
                    ends(ended, now)
            for action in actions:
                if isinstance(action, StartTrial):
                    live[action.trial_id, action.incarnation] = (now, action)
    for key in list(live):
        ends(key, now)
    return launches


def shares_of(launches: Sequence[Launch]) -> Shares:
    total = sum(launch.lasted_s for launch in launches)

    def share(chosen: Iterable[Launch]) -> float:
        return sum(launch.lasted_s for launch in chosen) / total if total else 0.0

    return Shares(
        num_launches=len(launches),
        trial_s=total,
        over_several_nodes=share(launch for launch in launches if launch.reach[1] > 1),
        too_many_nodes_or_switches=share(launch for launch in launches if launch.reach > launch.least),
        first_fit_would=share(launch for launch in launches if launch.first_fit > launch.least),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    shares = shares_of(launches_of(read_journal(RunFolder(chosen.run))))
    if chosen.json:
        print(json.dumps(msgspec.to_builtins(shares)))
        return
    print(f"{shares.num_launches} launches, {shares.trial_s:.1f} trial-seconds")
    print(f"over several nodes            {shares.over_several_nodes:7.1%}")
    print(f"farther than they had to      {shares.too_many_nodes_or_switches:7.1%}")
    print(f"first fit would have been so  {shares.first_fit_would:7.1%}")


if __name__ == "__main__":
    main()
