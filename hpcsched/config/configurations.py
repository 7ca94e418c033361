"""Configurations that a user writes down: `[search] first` and the lines of `list_file`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcsched.config import space
from hpcsched.config.files import is_file, read_json_lines
from hpcsched.config.kinds import WrongValueError, did_you_mean
from hpcsched.config.spec import Constant, Dimension


def complete_config(config: Mapping[str, Any], dimensions: Mapping[str, Dimension]) -> dict[str, Any]:
    """A given configuration in the space's order, constants filled in. Raises WrongValueError.

    Values may lie outside the space's ranges: a user's own starting point often does.
    """
    for name in config:
        if name not in dimensions:
            raise WrongValueError(
                f'"{name}" is not in [search.space] ({", ".join(dimensions) or "which is empty"}).{did_you_mean(name, dimensions)}'
            )
    complete: dict[str, Any] = {}
    for name, dimension in dimensions.items():
        if name in config:
            complete[name] = space.check_json(config[name])
        elif isinstance(dimension, Constant):
            complete[name] = dimension.value
        else:
            raise WrongValueError(f'"{name}" is missing')
    return complete


def read_list_file(path: Path, dimensions: Mapping[str, Dimension]) -> list[dict[str, Any]]:
    """The configurations of a JSON-lines file, in order. Raises WrongValueError with the line of the first mistake."""
    if not is_file(path):
        raise WrongValueError(f"no such file: {path}")
    configs = []
    for number, value in read_json_lines(path):
        if not isinstance(value, dict):
            raise WrongValueError(f"line {number}: not a JSON object")
        try:
            configs.append(complete_config(value, dimensions))
        except WrongValueError as error:
            raise WrongValueError(f"line {number}: {error}") from error
    if not configs:
        raise WrongValueError("holds no configuration")
    return configs
