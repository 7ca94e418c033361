"""Reading experiment files: defaults, overrides, paths, and what the core is told."""

from __future__ import annotations

import sys
import typing
from pathlib import Path

import msgspec
import pytest

from hpcsched.config.keys import KEYS, REQUIRED
from hpcsched.config.load import load_experiment, spec_from_json, spec_to_json
from hpcsched.config.options import _DOCS, OPTIONS, POLICIES, POLICY_DOCS
from hpcsched.config.reference import entries, markdown
from hpcsched.config.settings import core_settings
from hpcsched.config.spec import Choice, Constant, ExperimentSpec, Integer, LogUniform
from hpcsched.core.enums import Mode
from hpcsched.core.settings import (
    FifoSettings,
    HyperSchedSettings,
    RetrySettings,
    ScalingSettings,
    Settings,
    ShaSettings,
    TimeoutSettings,
)
from hpcsched.errors import ExperimentFileError
from tests.support.experiments import NOW, changed, load, write_experiment


def test_only_command_metric_and_space_are_required(tmp_path: Path) -> None:
    text = """
        [experiment]
        metric = "loss"
        [trial]
        command = ["sh", "train.sh"]
        [search.space]
        x = { uniform = [0, 1] }
    """
    spec = load(write_experiment(tmp_path, text), inside_job=True)
    for key in KEYS:
        if key.default is REQUIRED or key.path in ("experiment.name", "experiment.deadline", "trial.cwd"):
            continue
        value = (
            spec.scheduler.policy
            if key.path == "scheduler.policy"
            else getattr(getattr(spec, key.table), key.name)
        )
        if key.path == "scheduler.policy":
            value = value.__struct_config__.tag
        assert value == key.default, f"{key.path} is {value!r}, the reference says {key.default!r}"
    assert (spec.experiment.deadline, spec.experiment.deadline_at) == (None, None)
    assert spec.experiment.name == "experiment"
    assert spec.trial.cwd == str(tmp_path)
    assert spec.scaling == ScalingSettings(assume="linear")


def test_the_defaults_of_the_file_are_those_of_the_core(tmp_path: Path) -> None:
    # Two places state them: the table of keys for users, the core for its own tests.
    spec = load(
        write_experiment(tmp_path, changed(("max_iterations = 81\n", ""), ("reduction_factor = 3", "")))
    )
    assert core_settings(spec) == Settings(policy=HyperSchedSettings())


def test_every_key_has_a_field_and_every_field_a_key() -> None:
    hints = typing.get_type_hints(ExperimentSpec)
    special = {"experiment": {"deadline_at"}, "search": {"space", "first"}}
    for table in {key.table for key in KEYS}:
        fields = {field.name for field in msgspec.structs.fields(hints[table])}
        assert {key.name for key in KEYS if key.table == table} == fields - special.get(table, set())


def test_every_policy_option_has_a_kind_and_a_word_for_people() -> None:
    assert set(_DOCS) == {(policy, name) for policy in OPTIONS for name in OPTIONS[policy]}
    assert set(POLICY_DOCS) == set(POLICIES)
    for options in OPTIONS.values():
        for option in options.values():
            if option.default is not None:
                assert option.kind.read(option.default) == option.default


def test_the_reference_names_every_key_with_default_and_meaning() -> None:
    text = markdown()
    for entry in entries():
        assert f"| `{entry.name}` |" in text
        assert entry.default and entry.allowed and entry.doc, entry


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    text = """
        [experiment]
        name = "digits-1"
        metric = "val/loss"
        mode = "min"
        metric_window = 5
        deadline = 17:30:00
        seed = 7
        run_dir = "runs/here"
        [trial]
        command = ["sh", "train.sh", "--epochs", "3"]
        grace_period = 2
        max_iterations = 50
        env = { NCCL_DEBUG = "WARN" }
        preload = ["torchvision.transforms"]
        [scheduler]
        policy = "hypersched"
        reduction_factor = 2
        entrance = "reversible"
        keep_paused = true
        [atoms]
        gpus_per_atom = 2
        multiple_of = 1
        max_trial_atoms = 8
        [scaling]
        assume = { 2 = 1.8, 4 = 3.0 }
        [search]
        num_trials = 10
        first = [{ lr = 2.0, layers = 3, width = 1 }]
        [search.space]
        lr = { log_uniform = [1e-4, 1] }
        layers = { integer = [2, 8], log = true }
        width = { choice = [1, "wide", [1, 2]] }
        batch = 64
        [timeouts]
        silence = "1h"
        reserve = 0
        [retries]
        crashed = 0
        fail_fast = 0
        [simulation]
        anything = { goes = 1 }
    """
    spec = load(write_experiment(tmp_path, text))
    assert spec.experiment.mode is Mode.MIN
    assert (spec.experiment.deadline, spec.experiment.deadline_at) == (None, "17:30:00")
    assert spec.experiment.run_dir == str(tmp_path / "runs/here")
    assert spec.search.space == {
        "lr": LogUniform(1e-4, 1.0),
        "layers": Integer(2, 8, log=True),
        "width": Choice((1, "wide", [1, 2])),
        "batch": Constant(64),
    }
    assert spec.search.first == ({"lr": 2.0, "layers": 3, "width": 1, "batch": 64},)
    assert spec.simulation == {"anything": {"goes": 1}}
    assert core_settings(spec) == Settings(
        policy=HyperSchedSettings(entrance="reversible", keep_paused=True),
        mode=Mode.MIN,
        metric_window=5,
        grace_period=2,
        max_iterations=50,
        reduction_factor=2,
        multiple_of=1,
        max_trial_atoms=8,
        seed=7,
        num_trials=10,
        scaling=ScalingSettings(assume={1: 1.0, 2: 1.8, 4: 3.0}),
        timeouts=TimeoutSettings(silence_s=3600.0),
        retries=RetrySettings(crashed=0, fail_fast=0),
    )
    assert spec_from_json(spec_to_json(spec)) == spec


def test_sha_takes_the_least_number_of_trials_that_fills_its_rungs(tmp_path: Path) -> None:
    spec = load(write_experiment(tmp_path, changed(('"hypersched"', '"sha"'))))
    assert spec.scheduler.policy == ShaSettings(num_trials=81)
    assert core_settings(spec).num_trials == 81
    text = changed(
        ('"hypersched"', '"sha"'), ("[search.space]", "[search]\nnum_trials = 100\n[search.space]")
    )
    assert core_settings(load(write_experiment(tmp_path, text))).num_trials == 100


def test_the_command_line_overrides_the_file_and_its_mistakes_say_so(tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    spec = load(
        file, overrides={"experiment.deadline": "60s", "launcher.kind": "local", "experiment.run_dir": None}
    )
    assert (spec.experiment.deadline, spec.launcher.kind) == (60.0, "local")
    with pytest.raises(
        ExperimentFileError, match=r'experiment\.deadline: given on the command line: "0s" is not allowed'
    ):
        load(file, overrides={"experiment.deadline": "0s"})


def test_relative_paths_of_the_file_start_at_its_folder_and_those_of_the_command_line_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    there = tmp_path / "there"
    here.mkdir()
    there.mkdir()
    file = write_experiment(there, changed(("[trial]", 'run_dir = "r"\n[trial]')))
    monkeypatch.chdir(here)
    assert load(file).experiment.run_dir == str(there / "r")
    assert load(file, overrides={"experiment.run_dir": "r"}).experiment.run_dir == str(here / "r")
    assert load(file, folder=tmp_path / "there").trial.cwd == str(there)


def test_inside_a_slurm_job_no_deadline_is_needed(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, changed(('deadline = "2m"\n', "")))
    assert load(file, inside_job=True).experiment.deadline is None
    chain = write_experiment(tmp_path, changed(('deadline = "2m"', 'span = "chain"')))
    with pytest.raises(ExperimentFileError, match='with span = "chain" the end of a job is none'):
        load(chain, inside_job=True)


def test_a_search_without_a_deadline_ends_by_its_number_of_trials(tmp_path: Path) -> None:
    text = changed(
        ('deadline = "2m"\n', ""),
        ('"hypersched"', '"fifo"'),
        ("[search.space]", "[search]\nnum_trials = 5\n[search.space]"),
    )
    spec = load(write_experiment(tmp_path, text))
    assert (spec.scheduler.policy, core_settings(spec).num_trials) == (FifoSettings(), 5)


def test_a_simulation_needs_neither_command_nor_space_but_a_run_does(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, '[experiment]\nmetric = "m"\ndeadline = "30"\n[simulation]\nx = 1\n')
    assert load(file).trial.command == ()
    with pytest.raises(ExperimentFileError, match=r"trial\.command: is missing"):
        load(file, simulate=False)


def test_a_profile_gives_the_spans_and_the_best_of_them(tmp_path: Path) -> None:
    profile = {"spans": {"node": {"1": 1.0, "2": 1.9}, "beyond": {"2": 1.5, "4": 2.5}}}
    (tmp_path / "profile.json").write_bytes(msgspec.json.encode(profile))
    file = write_experiment(
        tmp_path, changed(("[scheduler]", '[scaling]\nprofile = "profile.json"\n[scheduler]'))
    )
    assert load(file).scaling == ScalingSettings(
        assume={1: 1.0, 2: 1.9, 4: 2.5}, spans={"node": {1: 1.0, 2: 1.9}, "beyond": {2: 1.5, 4: 2.5}}
    )


def test_measured_scaling_is_no_assumption(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, changed(("[scheduler]", '[scaling]\nassume = "measured"\n[scheduler]')))
    assert load(file).scaling.assume is None


def test_python_is_that_of_the_virtual_environment_which_need_not_be_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    file = write_experiment(tmp_path, changed(('["sh", "train.sh"]', '["python", "train.sh"]')))
    assert load_experiment(file, environ={"PATH": ""}, now=NOW).trial.command == ("python", "train.sh")
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(ExperimentFileError, match='"python" is not on PATH'):
        load_experiment(file, environ={"PATH": ""}, now=NOW)


@pytest.mark.parametrize("name", ["HPCSCHED_DEVICE", "HPCSCHED_MEMORY_NODES"])
def test_what_is_ours_and_meant_for_users_may_stand_in_the_environment(tmp_path: Path, name: str) -> None:
    file = write_experiment(tmp_path, changed(("[scheduler]", f'env = {{ {name} = "" }}\n[scheduler]')))
    assert load(file).trial.env == {name: ""}
