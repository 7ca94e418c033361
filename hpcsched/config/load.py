"""Reading `experiment.toml`: every mistake is found, and told together, before anything starts.

In three steps: the text becomes a document (TOML, UTF-8), the document becomes values (each key by its kind in
`hpcsched.config.keys`), and the values are compared with each other (`hpcsched.config.crosscheck`).
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpcsched.config import crosscheck, profile, space
from hpcsched.config.configurations import complete_config
from hpcsched.config.files import expand
from hpcsched.config.keys import KEYS, REQUIRED, SPECIAL_KEYS, TABLES, Key, keys_of
from hpcsched.config.kinds import WrongValueError, did_you_mean, show
from hpcsched.config.mistakes import Mistakes
from hpcsched.config.options import OPTIONS, POLICIES
from hpcsched.config.spec import (
    AtomsTable,
    CheckpointTable,
    Dimension,
    DriverTable,
    ExperimentSpec,
    ExperimentTable,
    LauncherTable,
    RetriesTable,
    SchedulerTable,
    SearchTable,
    SetupTable,
    TimeoutsTable,
    TrialTable,
)
from hpcsched.core.enums import Mode
from hpcsched.core.settings import ScalingSettings
from hpcsched.errors import ExperimentFileError

LARGEST_FILE = 1_000_000
"""Bytes; an experiment file is some kilobytes."""

_TABLE_NAMES = tuple(table.name for table in TABLES)
_TOP = tuple(name for name in _TABLE_NAMES if "." not in name)


def load_experiment(
    path: Path,
    *,
    overrides: Mapping[str, object] = {},
    folder: Path | None = None,
    simulate: bool | None = None,
    environ: Mapping[str, str] | None = None,
    now: float | None = None,
) -> ExperimentSpec:
    """The experiment in `path`, checked, every default filled in.

    overrides: dotted keys and values that stand in place of the file's (from the command line); those that are None
        are ignored. Relative paths among them start at the current directory.
    folder: where the file's relative paths start; default: the file's folder (a resumed run reads the copy in the
        run folder, whose paths start where the original lay).
    simulate: the command and the space may be missing and the command is not looked for; None: only when the file
        has a `[simulation]` table. A driver passes False.
    environ, now (UNIX s): default to this process's; they tell whether this is inside a Slurm job, where the
        command is found and whether a deadline has passed.

    Raises ExperimentFileError, which tells all mistakes that were found.
    """
    path = Path(path)
    text = read_text(path)
    document = parse_document(path, text)
    return spec_of(
        document,
        file=path,
        text=text,
        overrides=overrides,
        folder=folder,
        simulate=simulate,
        environ=os.environ if environ is None else environ,
        now=time.time() if now is None else now,
    )


def read_text(path: Path) -> str:
    """The file's text. Raises ExperimentFileError when it cannot be read or is not UTF-8."""
    try:
        if path.is_dir():
            raise ExperimentFileError("is a folder; name the experiment file in it", file=path)
        if not path.exists():
            beside = {Path(name).stem: name for name in _names_beside(path)}
            near = did_you_mean(path.stem, beside, beside.get)
            raise ExperimentFileError(
                f"no such file.{near}" + ("" if near else " `hpcsched init` writes one."), file=path
            )
        if not path.is_file():
            raise ExperimentFileError("is not a regular file", file=path)
        if path.stat().st_size > LARGEST_FILE:
            raise ExperimentFileError(
                f"is larger than {LARGEST_FILE} bytes: not an experiment file", file=path
            )
        raw = path.read_bytes()
    except OSError as error:
        raise ExperimentFileError(f"cannot be read: {error.strerror}", file=path) from error
    except ValueError as error:  # a NUL in the path
        raise ExperimentFileError(f"cannot be read: {error}", file=show(str(path))) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ExperimentFileError(
            f"line {line}: byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8", file=path
        ) from error


def _names_beside(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml"][:1000]
    except OSError:
        return []


def parse_document(file: Path, text: str) -> dict[str, Any]:
    """The TOML document. Raises ExperimentFileError with line and column of a syntax error."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentFileError(f"not valid TOML: {error}", file=file) from error
    except RecursionError as error:
        raise ExperimentFileError("not valid TOML: nested too deeply", file=file) from error
    except (ValueError, OverflowError) as error:  # numbers of thousands of digits
        raise ExperimentFileError(f"not valid TOML: {error}", file=file) from error


def spec_of(
    document: Mapping[str, Any],
    *,
    file: Path,
    text: str,
    overrides: Mapping[str, object],
    folder: Path | None,
    simulate: bool | None,
    environ: Mapping[str, str],
    now: float,
) -> ExperimentSpec:
    """A checked spec from a TOML document; see `load_experiment`."""
    given = {key: value for key, value in overrides.items() if value is not None}
    document = _overridden(document, given)
    home = (file.parent if folder is None else folder).absolute()
    mistakes = Mistakes(file, text, frozenset(given))
    reader = _Reader(document, mistakes, home, frozenset(given))
    simulated = bool(document.get("simulation")) if simulate is None else simulate
    spec = reader.read(file, text, required=not simulated)
    crosscheck.check(
        spec,
        mistakes,
        given=reader.given,
        environ=environ,
        now=now,
        simulated=simulated,
    )
    mistakes.raise_if_any()
    return spec


def _overridden(document: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """A copy of the document with some keys replaced."""
    copy = dict(document)
    for dotted, value in overrides.items():
        table, _, name = dotted.rpartition(".")
        inner = copy.get(table)
        if inner is None or isinstance(inner, dict):
            copy[table] = {**(inner or {}), name: value}
    return copy


class _Reader:
    """One pass over one document. Wrong values are told and stand as their defaults meanwhile."""

    def __init__(
        self, document: Mapping[str, Any], mistakes: Mistakes, home: Path, overridden: frozenset[str]
    ) -> None:
        self._document = document
        self._mistakes = mistakes
        self._home = home
        self._overridden = overridden
        self.given: set[str] = set()
        """Dotted keys that the file (or the command line) sets."""

    def read(self, file: Path, text: str, *, required: bool) -> ExperimentSpec:
        self._unknown_tables()
        values = {
            table: self._plain(table, required) for table in _TOP if table not in ("scaling", "simulation")
        }
        experiment = values["experiment"]
        deadline_s, deadline_at = experiment.pop("deadline") or (None, None)
        name = experiment.pop("name") or _name_from(file)
        trial = values["trial"]
        cwd = trial.pop("cwd") or str(self._home)
        dimensions = self._space(required)
        return ExperimentSpec(
            experiment=ExperimentTable(
                name=name,
                metric=experiment.pop("metric") or "metric",
                mode=Mode(experiment.pop("mode")),
                deadline=deadline_s,
                deadline_at=deadline_at,
                **experiment,
            ),
            trial=TrialTable(command=trial.pop("command") or (), cwd=cwd, **trial),
            scheduler=self._scheduler(values["scheduler"]),
            atoms=AtomsTable(**values["atoms"]),
            scaling=self._scaling(),
            search=SearchTable(space=dimensions, first=self._first(dimensions), **values["search"]),
            launcher=LauncherTable(**values["launcher"]),
            timeouts=TimeoutsTable(**values["timeouts"]),
            retries=RetriesTable(**values["retries"]),
            checkpoint=CheckpointTable(**values["checkpoint"]),
            driver=DriverTable(**values["driver"]),
            setup=SetupTable(**values["setup"]),
            simulation=dict(self._table("simulation")),
            file=file,
            text=text,
        )

    def _table(self, name: str) -> Mapping[str, Any]:
        table = self._document.get(name, {})
        return table if isinstance(table, dict) else {}

    def _unknown_tables(self) -> None:
        owners: dict[str, list[str]] = {}
        for key in KEYS:
            owners.setdefault(key.name, []).append(key.table)
        for name, value in self._document.items():
            if name not in _TOP:
                why = f"unknown table [{name}]" if isinstance(value, dict) else "a key outside any table"
                hint = did_you_mean(name, _TOP)
                if not hint and name in owners:
                    hint = f" It belongs in [{owners[name][0]}]."
                self._mistakes.add(name, f"{why}.{hint} Tables: {', '.join(_TOP)}")
            elif not isinstance(value, dict):
                self._mistakes.add(
                    name, "must be a table", value, allowed=f"[{name}] and its keys on the lines below"
                )

    def _plain(self, table: str, required: bool) -> dict[str, Any]:
        """All plain keys of a table; unknown ones are told."""
        known = keys_of(table)
        found = self._table(table)
        special = SPECIAL_KEYS.get(table, ())
        policy_options = (
            {name for options in OPTIONS.values() for name in options} if table == "scheduler" else set()
        )
        for name in found:
            self.given.add(f"{table}.{name}")
            if name not in known and name not in special and name not in policy_options:
                self._unknown_key(table, name, [*known, *special, *sorted(policy_options)])
        return {name: self._value(key, found, required) for name, key in known.items()}

    def _unknown_key(self, table: str, name: str, known: list[str]) -> None:
        hint = did_you_mean(name, known)
        if not hint:
            elsewhere = [key.table for key in KEYS if key.name == name]
            hint = f" It belongs in [{elsewhere[0]}]." if elsewhere else ""
        self._mistakes.add(f"{table}.{name}", f"unknown key.{hint} Keys of [{table}]: {', '.join(known)}")

    def _value(self, key: Key, found: Mapping[str, Any], required: bool) -> Any:
        missing = None if key.default is REQUIRED else key.default
        if key.name not in found:
            if key.default is REQUIRED and required:
                self._mistakes.add(key.path, f"is missing: {key.doc}", allowed=key.kind.allowed)
            return missing
        value = found[key.name]
        try:
            read = key.kind.read(value)
        except WrongValueError as error:
            self._mistakes.add(key.path, str(error), value, key.kind.allowed)
            return missing
        if key.path in ("experiment.run_dir", "trial.cwd", "search.list_file"):
            return self._path(key.path, read)
        return read

    def _path(self, key: str, text: str) -> str | None:
        start = Path.cwd() if key in self._overridden else self._home
        try:
            return str(expand(text, start))
        except WrongValueError as error:
            self._mistakes.add(key, str(error), text)
            return None

    def _scheduler(self, plain: dict[str, Any]) -> SchedulerTable:
        policy: str = plain["policy"]
        options = OPTIONS[policy]
        values: dict[str, Any] = {}
        for name, value in self._table("scheduler").items():
            key = f"scheduler.{name}"
            if name in options:
                try:
                    values[name] = options[name].kind.read(value)
                except WrongValueError as error:
                    self._mistakes.add(key, str(error), value, options[name].kind.allowed)
            elif name not in plain and self._mistakes.clean("scheduler.policy"):
                others = [other for other in OPTIONS if name in OPTIONS[other]]
                if others:
                    own = (
                        f'"{policy}" takes {", ".join(options)}' if options else f'"{policy}" has no options'
                    )
                    self._mistakes.add(
                        key,
                        f'is an option of policy {" and ".join(map(show, others))}, not of "{policy}"; {own}',
                    )
        if policy == "sha" and "num_trials" not in values and self._mistakes.clean("search.num_trials"):
            values["num_trials"] = self._table("search").get("num_trials") or crosscheck.least_sha_trials(
                self._number("trial", "grace_period"),
                self._number("trial", "max_iterations"),
                plain["reduction_factor"],
            )
        settings: Any = POLICIES[policy](**values)
        return SchedulerTable(policy=settings, reduction_factor=plain["reduction_factor"])

    def _number(self, table: str, name: str) -> int:
        key = keys_of(table)[name]
        try:
            return int(key.kind.read(self._table(table).get(name, key.default)))
        except WrongValueError:
            return int(key.default)

    def _scaling(self) -> ScalingSettings:
        table = self._table("scaling")
        known = SPECIAL_KEYS["scaling"]
        for name in table:
            if name not in known:
                self._unknown_key("scaling", name, list(known))
        if "assume" in table and "profile" in table:
            self._mistakes.add("scaling.profile", "assume and profile: only one of them can hold")
        if "assume" in table:
            try:
                return profile.read_assume(table["assume"])
            except WrongValueError as error:
                self._mistakes.add("scaling.assume", str(error), table["assume"], profile.ASSUME_ALLOWED)
        elif "profile" in table:
            value = table["profile"]
            allowed = "the path of a file that `hpcsched profile` wrote"
            if not isinstance(value, str) or not value.isprintable() or not value.strip():
                self._mistakes.add("scaling.profile", "", value, allowed)
            else:
                start = Path.cwd() if "scaling.profile" in self._overridden else self._home
                try:
                    return profile.read_profile(expand(value, start))
                except WrongValueError as error:
                    self._mistakes.add("scaling.profile", str(error), value, allowed)
        return ScalingSettings()

    def _space(self, required: bool) -> dict[str, Dimension]:
        search = self._table("search")
        table = search.get("space", {})
        if not isinstance(table, dict):
            self._mistakes.add(
                "search.space", "must be a table", table, "[search.space] and a line for each hyperparameter"
            )
            return {}
        if not table and required:
            self._mistakes.add(
                "search.space",
                "is empty: there is nothing to search. Give each hyperparameter a line under [search.space]",
                allowed=space.ALLOWED,
            )
        dimensions: dict[str, Dimension] = {}
        for name, value in table.items():
            key = f"search.space.{name if name.isprintable() else show(name)}"
            if not space.NAME.fullmatch(name):
                self._mistakes.add(
                    key,
                    "is no name for a hyperparameter: a letter or _, then letters, digits, '_', '.' and '-', at most 128",
                )
                continue
            try:
                dimensions[name] = space.read_dimension(value)
            except WrongValueError as error:
                self._mistakes.add(key, str(error), value, space.ALLOWED)
        return dimensions

    def _first(self, dimensions: Mapping[str, Dimension]) -> tuple[dict[str, Any], ...]:
        value = self._table("search").get("first", [])
        if not isinstance(value, list) or not all(isinstance(config, dict) for config in value):
            self._mistakes.add(
                "search.first", "", value, "a list of tables, such as [{ learning_rate = 0.1 }]"
            )
            return ()
        configs = []
        for number, config in enumerate(value, 1):
            try:
                configs.append(complete_config(config, dimensions))
            except WrongValueError as error:
                if self._mistakes.clean("search.space"):
                    self._mistakes.add("search.first", f"configuration {number}: {error}", config)
        return tuple(configs)


def _name_from(file: Path) -> str:
    stem = "".join(
        character if (character.isascii() and character.isalnum()) or character in "._-" else "-"
        for character in file.stem
    )
    return stem.strip("._-")[:100] or "experiment"


def spec_to_json(spec: ExperimentSpec) -> bytes:
    """The whole spec as JSON, to be kept with a run: a resumed run reads it back instead of the file."""
    return msgspec.json.encode(spec, enc_hook=_encode_path)


def spec_from_json(data: bytes) -> ExperimentSpec:
    """The inverse of `spec_to_json`. Raises msgspec.ValidationError when it is not one."""
    return msgspec.json.decode(data, type=ExperimentSpec, dec_hook=_decode_path)


def _encode_path(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"cannot encode a {type(value).__name__}")


def _decode_path(type_: type, value: object) -> object:
    if type_ is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"cannot decode a {type_.__name__}")
