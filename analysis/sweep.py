"""A sweep of simulations over MPI ranks: `srun --mpi=pmix python -m analysis.sweep FILE --policy P ... --seeds N`.

Rank 0 shares the runs out by mpi4py.futures, the other ranks do them; started without MPI (or as one rank) it uses the
cores of this machine. Takes what `hpcsched simulate` takes and prints the same JSON; `--deadlines` and `--atoms` may be
lists, and then every combination is run.

Ranks of mpi4py.futures must all be up before the first run: start it with `srun` or `mpirun` and at least two ranks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcsched.config.duration import parse_duration
from hpcsched.config.load import load_experiment
from hpcsched.core.enums import Mode
from hpcsched.errors import HpcschedError, InputError
from hpcsched.sim.comparison import runs_as_json
from hpcsched.sim.options import parse_workload, read_simulation
from hpcsched.sim.request import requests_of, with_scaling
from hpcsched.sim.simulate import SimulatedRun
from hpcsched.sim.sweep import RunRequest, perform_all

RANK_VARIABLES = ("PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
"""Set by whoever started us as a rank; only then is MPI imported (its import can abort a process that is none)."""


def is_mpi_rank(environ: Mapping[str, str]) -> bool:
    return any(name in environ for name in RANK_VARIABLES)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.sweep", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--atoms", default="", help="one number or several: 4,16")
    parser.add_argument("--deadlines", default="", help="one duration or several: 15,30s")
    parser.add_argument("--scalings", default="", help="linear, sqrt, none, or several")
    parser.add_argument("--configs", type=Path, default=None)
    parser.add_argument("--workload", default=None)
    parser.add_argument("--mode", choices=("max", "min"), default=None)
    parser.add_argument(
        "--jobs", type=int, default=None, help="processes where there is no MPI; default: all cores"
    )
    parser.add_argument(
        "--out", type=Path, default=None, help="write the JSON there; default: standard output"
    )
    return parser


def requests_from(options: argparse.Namespace) -> list[tuple[dict[str, Any], RunRequest]]:
    """Every run with what it varies. Raises HpcschedError."""
    import msgspec

    spec = load_experiment(options.file, simulate=True)
    table = read_simulation(spec)
    if options.workload is not None:
        try:
            table = msgspec.structs.replace(table, workload=parse_workload(options.workload, Path.cwd()))
        except ValueError as error:
            raise InputError(f"--workload {options.workload}: {error}") from error
    policies = options.policy or [str(spec.scheduler.policy.__struct_config__.tag)]
    try:
        atoms: list[int | None] = [int(word) for word in options.atoms.split(",") if word] or [None]
        deadlines: list[float | None] = [
            parse_duration(word) for word in options.deadlines.split(",") if word
        ] or [None]
    except ValueError as error:
        raise InputError(f"--atoms {options.atoms} --deadlines {options.deadlines}: {error}") from error
    scalings = [word for word in options.scalings.split(",") if word] or [None]
    found = []
    for num_atoms, deadline_s, scaling in itertools.product(atoms, deadlines, scalings):
        scaled, scaled_table = with_scaling(spec, table, scaling)
        for request in requests_of(
            scaled,
            scaled_table,
            policies,
            num_seeds=options.seeds,
            num_atoms=num_atoms,
            deadline_s=deadline_s,
            configs=options.configs,
            mode=None if options.mode is None else Mode(options.mode),
        ):
            varied = {
                "atoms": request.num_atoms,
                "deadline_s": request.deadline_s,
                "scaling": scaling or request.settings.scaling.assume,
            }
            found.append((varied, request))
    return found


def run_here_or_on_ranks(
    requests: Sequence[RunRequest], num_workers: int | None, environ: Mapping[str, str]
) -> list[SimulatedRun] | None:
    """The runs, in order; None on a rank that has only worked for rank 0."""
    if not is_mpi_rank(environ):
        return perform_all(requests, num_workers=num_workers)
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    if MPI.COMM_WORLD.Get_size() == 1:
        return perform_all(requests, num_workers=num_workers)
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        if executor is None:
            return None  # a worker: it has worked inside the `with` and is released at its end
        return perform_all(requests, executor=executor)  # type: ignore[arg-type]  # mpi4py's stubs: it is the pool here


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        varied = requests_from(options)
        runs = run_here_or_on_ranks([request for _, request in varied], options.jobs, os.environ)
    except HpcschedError as error:
        print(f"analysis.sweep: {error}", file=sys.stderr)
        return error.exit_code
    if runs is None:
        return 0
    document = runs_as_json([request for _, request in varied], runs)
    for (what, _), row in zip(varied, document["runs"], strict=True):
        row.update(what)
    text = json.dumps(document)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
