"""Whatever stands in an experiment file: a spec, or an ExperimentFileError. Nothing else, ever.

Deliberate faults that this found or must find: a kind whose `read` lets a TypeError through (unhashable words in OneOf,
huge whole numbers in Number), paths with NUL, cross checks that meet a value of a wrong type.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcsched.config.keys import KEYS, SPECIAL_KEYS, TABLES
from hpcsched.config.load import parse_document, spec_from_json, spec_of, spec_to_json
from hpcsched.config.options import OPTIONS
from hpcsched.config.settings import core_settings
from hpcsched.errors import ExperimentFileError
from hpcsched.search.samplers import make_sampler
from tests.support.experiments import NOW, VALID

NAMES = sorted(
    {key.name for key in KEYS}
    | {name for names in SPECIAL_KEYS.values() for name in names}
    | {name for options in OPTIONS.values() for name in options}
    | {"uniform", "log_uniform", "integer", "choice", "constant", "num", "log", "lr", "x"}
)
WORDS = sorted({word for key in KEYS for word in getattr(key.kind, "words", ())})

scalars = (
    st.booleans()
    | st.integers()
    | st.integers(-3, 100)
    | st.floats()
    | st.sampled_from(
        WORDS + NAMES + ["2m", "0s", "17:30", "2030-01-01T00:00", "measured", "train.sh", "a\0b", "~x/y", ""]
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
dimensions = st.fixed_dictionaries(
    {},
    optional={
        shape: st.lists(st.integers(-5, 20) | st.floats(), max_size=3) | values
        for shape in ("uniform", "log_uniform", "integer", "choice", "constant")
    }
    | {"num": st.integers(-1, 9), "log": st.booleans()},
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


@given(data=st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_valid_file_with_some_values_changed_is_a_spec_or_an_experiment_file_error(
    data: st.DataObject, file: Path
) -> None:
    document = parse_document(file, VALID)
    for _ in range(data.draw(st.integers(1, 4))):
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
    "text", ["x = " + "[" * 100_000, "x = " + "9" * 10_000, "x = 2026-13-45", "a.b.c = 1\n" * 3]
)
def test_texts_that_break_parsers_are_experiment_file_errors(text: str, file: Path) -> None:
    with pytest.raises(ExperimentFileError, match="not valid TOML"):
        parse_document(file, text)
