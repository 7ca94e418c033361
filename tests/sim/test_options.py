"""The `[simulation]` table and the command line's words: what they become, and what is said about each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.config.load import load_experiment
from hpcsched.core.enums import Mode
from hpcsched.core.settings import HyperSchedSettings
from hpcsched.errors import ExperimentFileError, InputError
from hpcsched.sim.options import SimulationTable, WorkloadName, read_simulation
from hpcsched.sim.request import policy_of, requests_of, with_scaling
from hpcsched.sim.workloads import read_configs

JOBS = Path(__file__).parent.parent.parent / "jobs" / "simulation"
FILE = """
[experiment]
metric = "score"
deadline = "30s"
[search]
num_trials = 10
[simulation]
"""


def table_of(folder: Path, lines: str) -> SimulationTable:
    file = folder / "experiment.toml"
    file.write_text(FILE + lines)
    return read_simulation(load_experiment(file))


def test_an_almost_empty_table_is_the_papers_workload(tmp_path: Path) -> None:
    assert table_of(tmp_path, 'workload = "paper"') == SimulationTable()


def test_every_key_arrives(tmp_path: Path) -> None:
    (tmp_path / "curves.csv").write_text("")
    table = table_of(
        tmp_path,
        'workload = "table:curves.csv"\nconfigs = "search"\nscaling = { 2 = 1.8 }\nstep = "0.2s"\nstart_up = "1s"\n'
        'restart_cost = 0.5\nsave = "2s"\nverdict_delay = 0.1\nboundary = 3\nkill = 4\nafter_record = "done"\natoms = 8\n'
        'atoms_per_node = 2\nsubmit = "when_free"\nsave_at_deadline = true\nfaults = { crash_rate = 0.5, node_back_s = 9 }\n',
    )
    assert table.workload == WorkloadName("table", (tmp_path / "curves.csv").absolute())
    assert table.scaling == {1: 1.0, 2: 1.8}
    assert table.world.start_up_s == 1.5
    assert (table.world.save_s, table.world.verdict_delay_s, table.world.boundary_s, table.world.kill_s) == (
        2,
        0.1,
        3,
        4,
    )
    assert table.world.save_budget == 0.05
    assert (table.configs, table.after_record, table.submit) == ("search", "done", "when_free")
    assert (table.atoms, table.atoms_per_node, table.step_s, table.save_at_deadline) == (8, 2, 0.2, True)
    assert table.faults.crash_rate == 0.5
    assert table.faults.node_back_s == 9


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('workload = "papper"', "paper"),
        ('workload = "table:missing.csv"', "no such file"),
        ("workload = 3", '"crossing"'),
        ('scaling = "cubic"', '"sqrt"'),
        ("scaling = { 2 = -1 }", "above 0"),
        ("scaling = { two = 1.5 }", "no number of atoms"),
        ("start_up = -1", "duration"),
        ("step = 0", "zero"),
        ("atoms = 0", "whole number"),
        ("atoms = true", "whole number"),
        ('submit = "later"', '"at_start"'),
        ('save_at_deadline = "yes"', "true or false"),
        ("faults = { crash_rat = 1 }", "crash_rat"),
        ("faults = { refuse = 1.5 }", "between 0 and 1"),
        ("faults = { crash_rate = -1 }", "negative"),
        ("faults = 3", "a table"),
        ("startup = 1", 'Did you mean "start_up"'),
    ],
)
def test_a_wrong_key_is_named_with_what_is_allowed(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ExperimentFileError) as caught:
        table_of(tmp_path, line)
    assert says in str(caught.value)
    assert caught.value.key.startswith(f"simulation.{line.split(' ')[0]}")


@pytest.mark.parametrize("name", ["paper_4atoms.toml", "paper_16atoms.toml"])
def test_the_shipped_simulations_are_the_papers(name: str) -> None:
    """Section 6 of the paper: r = 5, R = 500, eta = 4, deadline 30, a step of 0.1."""
    spec = load_experiment(JOBS / name)
    table = read_simulation(spec)
    requests = requests_of(spec, table, ["hypersched", "asha"], num_seeds=2)
    assert [(one.label, one.seed) for one in requests] == [
        ("hypersched", 0), ("hypersched", 1), ("asha", 0), ("asha", 1)
    ]  # fmt: skip
    settings = requests[0].settings
    assert (settings.grace_period, settings.max_iterations, settings.reduction_factor) == (5, 500, 4)
    assert (settings.multiple_of, settings.request_ahead, settings.save_at_deadline) == (1, False, False)
    assert settings.policy == HyperSchedSettings()
    assert settings.timeouts.silence_s is None
    assert requests[0].num_atoms == int(name.removeprefix("paper_").removesuffix("atoms.toml"))
    assert (requests[0].deadline_s, table.step_s) == (30.0, 0.1)


def test_a_policy_can_be_given_with_options() -> None:
    spec = load_experiment(JOBS / "paper_4atoms.toml")
    assert policy_of(
        "hypersched:entrance=reversible,keep_paused=true,cool_down=2", spec
    ) == HyperSchedSettings(entrance="reversible", keep_paused=True, cool_down=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hypershed", 'Did you mean "hypersched"'),
        ("asha:stoping=true", "stopping"),
        ("hypersched:cool_down=many", "whole number"),
        ("hypersched:entrance=open", '"reversible"'),
    ],
)
def test_a_wrong_policy_says_what_there_is(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        policy_of(text, load_experiment(JOBS / "paper_4atoms.toml"))
    assert says in str(caught.value)


def test_scaling_on_the_command_line_is_told_and_true() -> None:
    spec = load_experiment(JOBS / "paper_4atoms.toml")
    told, table = with_scaling(spec, read_simulation(spec), "sqrt")
    assert (told.scaling.assume, table.scaling) == ("sqrt", "sqrt")
    request = requests_of(told, table, ["asha"], mode=Mode.MIN, deadline_s=7.0, num_atoms=3)[0]
    assert (request.settings.scaling.assume, request.settings.mode) == ("sqrt", Mode.MIN)
    assert (request.deadline_s, request.num_atoms) == (7.0, 3)


def test_seed_files_are_the_seeds(tmp_path: Path) -> None:
    spec = load_experiment(JOBS / "paper_4atoms.toml")
    for number in (3, 1):
        (tmp_path / f"seed-{number:02d}.jsonl").write_text('{"b0": 0.1, "b1": 0.2, "b2": 0.3}\n')
    (tmp_path / "results.csv").write_text("")
    requests = requests_of(spec, read_simulation(spec), ["asha"], configs=tmp_path)
    assert [(one.seed, one.configs_file and one.configs_file.name) for one in requests] == [
        (1, "seed-01.jsonl"),
        (3, "seed-03.jsonl"),
    ]
    with pytest.raises(InputError, match="only 2 seed files"):
        requests_of(spec, read_simulation(spec), ["asha"], configs=tmp_path, num_seeds=3)
    with pytest.raises(InputError, match="no seed-NN"):
        requests_of(spec, read_simulation(spec), ["asha"], configs=tmp_path / "none")


def test_a_simulation_without_an_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "endless.toml"
    file.write_text(
        '[experiment]\nmetric = "x"\n[scheduler]\npolicy = "asha"\n[simulation]\nworkload = "paper"\n'
    )
    with pytest.raises(ExperimentFileError, match="never ends"):
        load_experiment(file)
    grid = '[search]\nsampler = "grid"\nspace = { x = { choice = [1, 2] } }\n'
    file.write_text(file.read_text().replace("[simulation]", grid + "[simulation]"))
    spec = load_experiment(file)
    with pytest.raises(InputError, match="never end"):
        requests_of(spec, read_simulation(spec), ["asha"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1: not JSON"),
        ('\n{"b0": 1, "b1": 2, "b2": 3}\n[1]\n', "line 3: not an object"),
        ('{"b0": 1}\n', "no b1, b2"),
        ('{"b0": "x", "b1": 2, "b2": 3}\n', "b0 is 'x', not a number"),
        ("\n", "no configuration"),
    ],
)
def test_a_wrong_configuration_line_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "seed-00.jsonl"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_configs(file, "paper")
    assert says in str(caught.value)
