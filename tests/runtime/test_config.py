"""What a script reads of its hyperparameters is noted, however it reads them."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcsched.runtime.config import Config
from hpcsched.wire import Report
from tests.support.groups import HeardLine, Objects, launch, make_trial

VALUES = {"depth": 3, "width": 0.5}


def keyword_arguments(**given: Any) -> dict[str, Any]:
    return given


WHOLE: dict[str, Callable[[Config], Any]] = {
    "keyword arguments": lambda config: keyword_arguments(**config),
    "a dict": dict,
    "a display": lambda config: {**config},
    "update": lambda config: (given := {}, given.update(config))[0],  # type: ignore[var-annotated]
    "a loop": lambda config: {name: VALUES[name] for name in config},
    "items": lambda config: dict(config.items()),
    "keys and values": lambda config: dict(zip(config.keys(), config.values(), strict=True)),
    "or": lambda config: config | {},
    "or, on the right": lambda config: {} | config,
    "its copy": lambda config: config.copy(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "json": lambda config: json.loads(json.dumps(config)),
    "pickle": lambda config: pickle.loads(pickle.dumps(config)),
}


@pytest.mark.parametrize("way", WHOLE)
def test_whoever_takes_all_has_read_all(way: str) -> None:
    config = Config(VALUES)
    assert WHOLE[way](config) == VALUES
    assert config.unread == ()


ONE: dict[str, Callable[[Config], Any]] = {
    "subscript": lambda config: config["depth"],
    "get": lambda config: config.get("depth"),
    "get with a default": lambda config: config.get("depth", 1),
    "pop": lambda config: config.pop("depth"),
}


@pytest.mark.parametrize("way", ONE)
def test_whoever_asks_for_one_has_read_one(way: str) -> None:
    config = Config(VALUES)
    assert ONE[way](config) == 3
    assert config.unread == ("width",)


def test_a_look_whether_there_is_one_counts_and_print_does_not() -> None:
    config = Config(VALUES)
    assert str(config) == str(VALUES)
    assert config == VALUES and len(config) == 2
    assert config.unread == ("depth", "width")
    assert "depth" in config
    assert config.unread == ("width",)


def test_the_first_report_says_what_the_script_has_not_read(tmp_path: Path) -> None:
    line = HeardLine()
    trial = make_trial(launch(tmp_path, config={"learning_rate": 0.1, "width": 8}), line, lr=0.5)
    assert trial.config["lr"] == 0.5
    assert trial.config["width"] == 8
    trial.track(**Objects().named)
    for _ in trial:
        trial.report(accuracy=1.0)
    assert [report.unread for report in line.of(Report)] == [("learning_rate",), (), (), ()]
