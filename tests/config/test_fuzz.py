"""Whatever stands in an experiment file: a spec, or an ExperimentFileError. Nothing else, ever.

Each was seen to fail on a deliberate fault: `Number` that lets the OverflowError of a huge whole number through, `expand`
that lets "~nobody" through, a uniform range whose width is infinite, whole numbers beyond 64 bits.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcsched.config.keys import KEYS, SPECIAL_KEYS, TABLES
from hpcsched.config.kinds import Kind, Number, WrongValueError
from hpcsched.config.load import parse_document, spec_from_json, spec_of, spec_to_json
from hpcsched.config.options import OPTIONS
from hpcsched.config.profile import read_assume, read_profile
from hpcsched.config.settings import core_settings
from hpcsched.config.space import read_dimension
from hpcsched.config.spec import Integer, LogUniform, Uniform
from hpcsched.errors import ExperimentFileError
from hpcsched.search.randomly import draw
from hpcsched.search.samplers import make_sampler
from tests.support.experiments import NOW, VALID

NAMES = sorted(
    {key.name for key in KEYS}
    | {name for names in SPECIAL_KEYS.values() for name in names}
    | {name for options in OPTIONS.values() for name in options}
    | {"uniform", "log_uniform", "integer", "choice", "constant", "num", "log", "lr", "x"}
)
WORDS = sorted({word for key in KEYS for word in getattr(key.kind, "words", ())})

HUGE = [10**400, -(10**400), 2**63, 2**64, -(2**70), 1.7e308, -1.7e308, 5e-324, float("nan"), float("inf")]

scalars = (
    st.booleans()
    | st.integers()
    | st.sampled_from(HUGE)
    | st.integers(-3, 100)
    | st.floats()
    | st.sampled_from(
        WORDS
        + NAMES
        + [
            "2m",
            "0s",
            "17:30",
            "2030-01-01T00:00",
            "measured",
            "train.sh",
            "a\0b",
            "~nobody-here/y",
            "x" * 5000,
            "",
        ]
    )
    | st.text(max_size=20)
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=st.just(dt.UTC))
)
names = st.sampled_from(NAMES) | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)
ends = st.lists(st.integers(-5, 20) | st.floats() | st.sampled_from(HUGE), min_size=2, max_size=2)
dimensions = st.builds(
    lambda shape, given, extra: {shape: given, **extra},
    st.sampled_from(["uniform", "log_uniform", "integer", "choice", "constant"]),
    ends | ends.map(lambda pair: sorted(pair, key=lambda end: (end != end, end))) | values,
    st.fixed_dictionaries({}, optional={"num": st.integers(-1, 9), "log": st.booleans()}),
)
tables = st.dictionaries(names, values, max_size=5)
documents = st.dictionaries(
    st.sampled_from([table.name for table in TABLES]) | names, tables | values, max_size=6
)


def read(document: dict[str, Any], file: Path, *, simulate: bool | None) -> None:
    """A spec that can be used, or an ExperimentFileError with a message that prints."""
    try:
        spec = spec_of(
            document,
            file=file,
            text=VALID,
            overrides={},
            folder=None,
            simulate=simulate,
            environ={"PATH": "/usr/bin:/bin"},
            now=NOW,
        )
    except ExperimentFileError as error:
        assert str(error).startswith(str(file))
        str(error).encode()
        return
    core_settings(spec)
    assert spec_from_json(spec_to_json(spec)).search == spec.search
    if spec.search.sampler != "optuna":
        make_sampler(spec, seed=0).ask(0)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "train.sh").touch()
    return folder / "experiment.toml"


@given(document=documents, simulate=st.sampled_from([None, True, False]))
@settings(max_examples=400, deadline=None)
def test_any_document_is_a_spec_or_an_experiment_file_error(
    document: dict[str, Any], simulate: bool | None, file: Path
) -> None:
    read(document, file, simulate=simulate)


KINDS = [key.kind for key in KEYS] + [
    option.kind for options in OPTIONS.values() for option in options.values()
]


@given(kind=st.sampled_from(KINDS), value=values)
@example(kind=Number(0), value=10**400)
@settings(max_examples=1500, deadline=None)
def test_a_kind_reads_any_value_or_says_what_is_wrong(kind: Kind, value: Any) -> None:
    try:
        read_value = kind.read(value)
    except WrongValueError:
        return
    assert msgspec.json.decode(msgspec.json.encode(read_value)) is not None


@given(value=dimensions | values, bits=st.integers(0, 2**256 - 1))
@example(value={"uniform": [-1.7e308, 1.7e308]}, bits=2**255)
@example(value={"integer": [-(2**70), 2**70]}, bits=2**256 - 1)
@example(value={"log_uniform": [5e-324, 1.7e308]}, bits=2**256 - 1)
@settings(max_examples=1500, deadline=None)
def test_any_value_is_a_dimension_that_can_be_drawn_from_or_says_what_is_wrong(value: Any, bits: int) -> None:
    try:
        dimension = read_dimension(value)
    except WrongValueError:
        return
    drawn = draw(dimension, bits)
    assert msgspec.json.decode(msgspec.json.encode({"x": drawn})) == {"x": drawn}
    if isinstance(drawn, float):
        assert math.isfinite(drawn)
    if isinstance(dimension, (Uniform, LogUniform, Integer)):
        assert dimension.low <= drawn <= dimension.high


@given(value=values | st.dictionaries(st.sampled_from(["1", "2", "04", "0", "x", "²"]), scalars, max_size=3))
@settings(max_examples=500, deadline=None)
def test_any_assumption_of_scaling_is_read_or_says_what_is_wrong(value: Any) -> None:
    try:
        scaling = read_assume(value)
    except WrongValueError:
        return
    if isinstance(scaling.assume, dict):
        assert scaling.assume[1] == 1.0


@given(value=values)
@settings(max_examples=300, deadline=None)
def test_any_profile_is_read_or_says_what_is_wrong(value: Any, file: Path) -> None:
    profile = file.parent / "profile.json"
    for document in (value, {"spans": value}, {"spans": {"node": value}}, {"spans": {"node": {"2": value}}}):
        profile.write_text(json.dumps(document, default=str))
        with contextlib.suppress(WrongValueError):
            read_profile(profile)


@given(data=st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_valid_file_with_some_values_changed_is_a_spec_or_an_experiment_file_error(
    data: st.DataObject, file: Path
) -> None:
    document = parse_document(file, VALID)
    for _ in range(data.draw(st.integers(1, 3))):
        table = data.draw(st.sampled_from([table.name for table in TABLES if "." not in table.name]))
        known = [key.name for key in KEYS if key.table == table] + list(SPECIAL_KEYS.get(table, ()))
        if table == "scheduler":
            known += [name for options in OPTIONS.values() for name in options]
        document.setdefault(table, {})[data.draw(st.sampled_from(known or ["x"]))] = data.draw(values)
    if data.draw(st.booleans()):
        document["search"]["space"] = data.draw(st.dictionaries(names, dimensions | values, max_size=3))
    read(document, file, simulate=False)


@given(cut=st.integers(0, len(VALID)), drop=st.integers(0, 30), inserted=st.text(max_size=10))
@settings(max_examples=300, deadline=None)
def test_a_damaged_text_is_a_document_or_an_experiment_file_error(
    cut: int, drop: int, inserted: str, file: Path
) -> None:
    try:
        document = parse_document(file, VALID[:cut] + inserted + VALID[cut + drop :])
    except ExperimentFileError:
        return
    read(document, file, simulate=False)


@pytest.mark.parametrize(
    "path", ["~nobody-here/y", "x" * 5000, "a\0b", "/dev/null", "/", ".", "/proc/self/mem"]
)
@pytest.mark.parametrize(
    "key",
    [
        "experiment.run_dir",
        "trial.cwd",
        "search.list_file",
        "scaling.profile",
        "trial.command",
        "launcher.wrap",
    ],
)
def test_any_path_is_taken_or_told(key: str, path: str, file: Path) -> None:
    document = parse_document(file, VALID)
    table, _, name = key.partition(".")
    document.setdefault(table, {})[name] = [path] if key in ("trial.command", "launcher.wrap") else path
    if key == "search.list_file":
        document["search"]["sampler"] = "list"
    read(document, file, simulate=False)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 100_000, "x = " + "9" * 10_000, "x = 2026-13-45", "a.b.c = 1\n" * 3]
)
def test_texts_that_break_parsers_are_experiment_file_errors(text: str, file: Path) -> None:
    with pytest.raises(ExperimentFileError, match="not valid TOML"):
        parse_document(file, text)
