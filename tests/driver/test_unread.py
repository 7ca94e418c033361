"""A hyperparameter that no script reads is said, once."""

from __future__ import annotations

from hpcsched.config.spec import Constant, LogUniform, Uniform
from hpcsched.driver.unread import Unread

SPACE = {"lr": LogUniform(1e-4, 1.0), "dropout": Uniform(0.0, 0.5), "batch_size": Constant(64)}


def test_what_is_varied_and_not_read_is_said_once() -> None:
    unread = Unread(SPACE)
    assert "without reading lr from trial.config: unless it is read later" in unread.warning(("lr",))
    assert unread.warning(("lr",)) == ""
    assert "without reading dropout from" in unread.warning(("dropout", "lr"))


def test_several_are_one_warning() -> None:
    assert "without reading dropout, lr from trial.config: unless they are" in Unread(SPACE).warning(
        ("lr", "dropout")
    )


def test_constants_and_the_scripts_own_defaults_are_passed_over() -> None:
    assert Unread(SPACE).warning(("batch_size", "width")) == ""
