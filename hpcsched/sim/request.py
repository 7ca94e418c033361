"""From an experiment file and what the command line says to the runs to do."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcsched.config.kinds import WrongValueError
from hpcsched.config.options import OPTIONS, POLICIES
from hpcsched.config.settings import core_settings
from hpcsched.config.spec import ExperimentSpec
from hpcsched.core.enums import Mode
from hpcsched.core.settings import PolicySettings, ScalingSettings, ShaSettings, TimeoutSettings
from hpcsched.errors import InputError
from hpcsched.sim.options import SimulationTable
from hpcsched.sim.sweep import RunRequest

NO_TIMEOUTS = TimeoutSettings(
    start_s=None, silence_s=None, preempt_grace_s=None, kill_wait_s=None, deadline_margin_s=0.0
)


def policy_of(text: str, spec: ExperimentSpec) -> PolicySettings:
    """`NAME` or `NAME:option=value,option=value`, for example "hypersched:entrance=reversible,keep_paused=true".

    The file's own policy keeps the options that the file gives it; every other has its defaults. Raises InputError.
    """
    name, _, options = text.partition(":")
    if name not in POLICIES:
        near = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f' Did you mean "{near[0]}"?' if near else ""
        raise InputError(
            f"--policy {text}: there is no policy {name!r}.{hint} Allowed: {', '.join(POLICIES)}"
        )
    own = spec.scheduler.policy
    values: dict[str, object] = {}
    if isinstance(own, POLICIES[name]):
        values = {field: getattr(own, field) for field in own.__struct_fields__}
    for part in filter(None, options.split(",")):
        key, _, word = part.partition("=")
        option = OPTIONS[name].get(key)
        if option is None:
            known = ", ".join(OPTIONS[name]) or "none"
            raise InputError(f"--policy {text}: {name} has no option {key!r}; it has: {known}")
        try:
            values[key] = option.kind.read(_value(word))
        except WrongValueError as error:
            raise InputError(
                f"--policy {text}: {key} = {word!r} is not allowed: {error} (allowed: {option.kind.allowed})"
            ) from error
    built: PolicySettings = POLICIES[name](**values)  # type: ignore[assignment]  # POLICIES holds the union's members
    return built


def _value(word: str) -> object:
    """A word as TOML would read it; a bare word is a text."""
    if word in ("true", "false"):
        return word == "true"
    for number in (int, float):
        try:
            return number(word)
        except ValueError:
            continue
    return word


def seed_files(folder: Path) -> list[tuple[int, Path]]:
    """(seed, file) of the `seed-NN.jsonl` files of a folder, by seed. Raises InputError."""
    try:
        files = sorted(folder.glob("seed-*.jsonl"))
    except OSError as error:
        raise InputError(f"--configs {folder}: {error}") from error
    found = []
    for file in files:
        number = file.stem.removeprefix("seed-")
        if number.isdigit():
            found.append((int(number), file))
    if not found:
        raise InputError(f"--configs {folder}: no seed-NN.jsonl file in this folder")
    return sorted(found)


def requests_of(
    spec: ExperimentSpec,
    table: SimulationTable,
    policies: Sequence[str],
    *,
    num_seeds: int | None = None,
    num_atoms: int | None = None,
    deadline_s: float | None = None,
    configs: Path | None = None,
    mode: Mode | None = None,
) -> list[RunRequest]:
    """One run a (policy, seed): policies outermost, seeds ascending. Raises InputError."""
    if configs is None:
        first = spec.experiment.seed
        seeds: list[tuple[int, Path | None]] = [(first + i, None) for i in range(num_seeds or 1)]
    else:
        seeds = [*seed_files(configs)]
        if num_seeds is not None:
            if num_seeds > len(seeds):
                raise InputError(f"--seeds {num_seeds}: {configs} holds only {len(seeds)} seed files")
            seeds = seeds[:num_seeds]
    base = core_settings(spec)
    faulty = table.faults.any
    base = msgspec.structs.replace(
        base,
        mode=base.mode if mode is None else mode,
        request_ahead=table.submit == "when_free",
        save_at_deadline=table.save_at_deadline,
        timeouts=base.timeouts if faulty else NO_TIMEOUTS,
    )
    if num_atoms is None:
        num_atoms = table.atoms or spec.atoms.num_atoms or 4
    if deadline_s is None:
        deadline_s = spec.experiment.deadline
    requests = []
    for text in policies:
        policy = policy_of(text, spec)
        settings = msgspec.structs.replace(base, policy=policy)
        if isinstance(policy, ShaSettings):
            settings = msgspec.structs.replace(settings, num_trials=policy.num_trials)
        if (
            deadline_s is None
            and settings.num_trials is None
            and table.workload.kind != "run"
            and configs is None
        ):
            raise InputError(
                f"{spec.file}: this simulation would never end: give a deadline ([experiment] deadline or --deadline) "
                "or a number of trials ([search] num_trials)"
            )
        for seed, file in seeds:
            requests.append(
                RunRequest(
                    label=text,
                    settings=settings,
                    table=table,
                    num_atoms=num_atoms,
                    deadline_s=deadline_s,
                    seed=seed,
                    configs_file=file,
                    spec=spec if table.configs == "search" else None,
                )
            )
    return requests


def with_scaling(
    spec: ExperimentSpec, table: SimulationTable, scaling: str | None
) -> tuple[ExperimentSpec, SimulationTable]:
    """`--scaling`: what is true and what the scheduler is told, both (each policy's own options still hold)."""
    if scaling is None:
        return spec, table
    if scaling not in ("linear", "sqrt", "none"):
        raise InputError(f"--scaling {scaling}: allowed: linear, sqrt, none")
    told = ScalingSettings(assume=scaling)  # type: ignore[arg-type]  # checked above
    return msgspec.structs.replace(spec, scaling=told), msgspec.structs.replace(table, scaling=scaling)
