"""Many simulated runs: each is a value that says everything, so it can be done by any process, in any order."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from hpcsched.config.spec import ExperimentSpec
from hpcsched.core.settings import Settings
from hpcsched.search.samplers import make_sampler
from hpcsched.sim.machine import simulated_machine
from hpcsched.sim.options import SimulationTable
from hpcsched.sim.scaling import Scaling
from hpcsched.sim.simulate import Learner, SimulatedRun, simulate
from hpcsched.sim.workloads import make_workload, read_configs
from hpcsched.sim.world import Sampler


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run to do."""

    label: str
    """The policy's name in tables."""
    settings: Settings
    table: SimulationTable
    num_atoms: int
    deadline_s: float | None
    seed: int
    """Of the workload, the sampler, the faults and the core."""
    configs_file: Path | None = None
    """The trials of this seed, in order; None: by the table."""
    spec: ExperimentSpec | None = None
    """For `configs = "search"`."""


def perform(request: RunRequest) -> SimulatedRun:
    """Do one run, in this process."""
    table = request.table
    workload = make_workload(table, request.seed, request.settings.mode)
    sampler: Sampler | None = None
    learner: Learner | None = None
    if request.configs_file is not None:
        sampler = read_configs(request.configs_file, table.workload.kind)
    elif table.configs == "search":
        assert request.spec is not None, "configs of the search need the experiment"
        searcher = make_sampler(request.spec, seed=request.seed)
        sampler = searcher
        learner = searcher if request.spec.search.sampler == "optuna" else None
    assumed = request.settings.scaling.assume
    scaling: Scaling = table.scaling or assumed or "linear"
    return simulate(
        msgspec.structs.replace(request.settings, seed=request.seed),
        workload,
        machine=simulated_machine(request.num_atoms, table.atoms_per_node),
        deadline_s=request.deadline_s,
        scaling=scaling,
        world=table.world,
        faults=table.faults,
        fault_seed=request.seed,
        sampler=sampler,
        learner=learner,
    )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_pool(num_workers: int) -> ProcessPoolExecutor:
    """Workers from a clean server process: no state of ours is inherited by fork."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hpcsched.sim.sweep"])
    return ProcessPoolExecutor(num_workers, mp_context=context)


def perform_all(
    requests: Sequence[RunRequest],
    *,
    num_workers: int | None = None,
    done: Callable[[RunRequest, SimulatedRun], None] | None = None,
    executor: Executor | None = None,
) -> list[SimulatedRun]:
    """All runs, in the order of the requests, on all cores (or by `executor`, mpi4py's for instance).

    `done` is called as runs end, in any order. One worker, or one run, needs no process.
    """
    workers = min(num_cores() if num_workers is None else num_workers, len(requests))
    results: list[SimulatedRun | None] = [None] * len(requests)
    if executor is None and workers <= 1:
        outcomes: Iterator[tuple[int, SimulatedRun]] = (
            (number, perform(request)) for number, request in enumerate(requests)
        )
        _gather(requests, results, outcomes, done)
    elif executor is not None:
        _gather(requests, results, _spread(executor, requests), done)
    else:
        with process_pool(workers) as pool:
            _gather(requests, results, _spread(pool, requests), done)
    return [result for result in results if result is not None]


def _spread(executor: Executor, requests: Sequence[RunRequest]) -> Iterator[tuple[int, SimulatedRun]]:
    futures = {executor.submit(perform, request): number for number, request in enumerate(requests)}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def _gather(
    requests: Sequence[RunRequest],
    results: list[SimulatedRun | None],
    outcomes: Iterator[tuple[int, SimulatedRun]],
    done: Callable[[RunRequest, SimulatedRun], None] | None,
) -> None:
    for number, result in outcomes:
        results[number] = result
        if done is not None:
            done(requests[number], result)
