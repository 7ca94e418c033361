"""Dimensions of the search space."""

from __future__ import annotations

import pytest

from hpcsched.config.kinds import WrongValueError
from hpcsched.config.space import read_dimension
from hpcsched.config.spec import Choice, Constant, Dimension, Integer, LogUniform, Uniform


@pytest.mark.parametrize(
    ("written", "dimension"),
    [
        ({"uniform": [0, 1]}, Uniform(0.0, 1.0)),
        ({"uniform": [0, 1], "num": 3}, Uniform(0.0, 1.0, 3)),
        ({"log_uniform": [1e-4, 1]}, LogUniform(1e-4, 1.0)),
        ({"integer": [-2, 8]}, Integer(-2, 8)),
        ({"integer": [1, 8], "log": True, "num": 4}, Integer(1, 8, True, 4)),
        ({"choice": [1, "a", True, [1, 2], {"b": None}]}, Choice((1, "a", True, [1, 2], {"b": None}))),
        ({"constant": [1]}, Constant([1])),
        (64, Constant(64)),
        ("adam", Constant("adam")),
        (False, Constant(False)),
    ],
)
def test_a_dimension_is_read(written: object, dimension: Dimension) -> None:
    assert read_dimension(written) == dimension


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({}, "empty"),
        ({"uniform": [0, 1], "choice": [1]}, "one dimension, one shape"),
        ({"uniform": [0, 1], "nmu": 3}, 'Did you mean "num"'),
        ({"choice": [1], "num": 3}, "it takes nothing else"),
        ({"uniform": [0]}, r"takes \[low, high\]"),
        ({"uniform": [0, True]}, "true is not a number"),
        ({"uniform": [1, 1]}, "low must be below high"),
        ({"uniform": [-1.7e308, 1.7e308]}, "too wide"),
        ({"uniform": [0, 10**400]}, "not finite"),
        ({"log_uniform": [-1, 1]}, "low > 0"),
        ({"integer": [0, 1.0]}, "1.0 is not a whole number"),
        ({"integer": [0, 2**63]}, "64 bits"),
        ({"integer": [0, 8], "log": True}, "low >= 1"),
        ({"integer": [0, 8], "log": 1}, "true or false"),
        ({"uniform": [0, 1], "num": 0}, "1 to 1000000"),
        ({"uniform": [0, 1], "num": True}, "1 to 1000000"),
        ({"choice": [2**64]}, "64 bits"),
        ({"choice": "ab"}, "takes a list"),
        ({"constant": float("nan")}, "not finite"),
        (None, "^$"),
    ],
)
def test_what_is_no_dimension_is_refused_with_the_reason(written: object, why: str) -> None:
    with pytest.raises(WrongValueError, match=why):
        read_dimension(written)


def test_values_nested_without_end_are_refused() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(WrongValueError, match="nested"):
        read_dimension({"constant": deep})
