"""One golden message a kind of mistake: file, key, value, what is allowed, and a guess at what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.errors import ExperimentFileError, InputError
from tests.support.experiments import VALID, changed, load, write_experiment

SPACE_ALLOWED = (
    "(allowed: { uniform = [low, high] } | { log_uniform = [low, high] } | { integer = [low, high] } | "
    "{ choice = [a, b, ...] } | { constant = value })"
)
DURATION_ALLOWED = '(allowed: a duration such as "90s", "2h30m", "1d" or a number of seconds, above 0)'
LR = "learning_rate = { log_uniform = [1e-4, 1.0] }"
KEYS_OF_EXPERIMENT = "Keys of [experiment]: name, metric, mode, metric_window, deadline, seed, span, run_dir"

ONE_MISTAKE: dict[str, tuple[list[tuple[str, str]], str]] = {
    "r above R": (
        [("max_iterations = 81", "max_iterations = 81\ngrace_period = 82")],
        "trial.grace_period: line 8: 82 is not allowed: r must not be above R: trials end at max_iterations = 81 (allowed: 1 to 81)",
    ),
    "reduction factor 1": (
        [("reduction_factor = 3", "reduction_factor = 1")],
        "scheduler.reduction_factor: line 11: 1 is not allowed (allowed: a whole number, at least 2)",
    ),
    "true where a number is asked": (
        [("max_iterations = 81", "max_iterations = true")],
        "trial.max_iterations: line 7: true is not allowed (allowed: a whole number, at least 1)",
    ),
    "a fraction where a whole number is asked": (
        [("max_iterations = 81", "max_iterations = 81.0")],
        "trial.max_iterations: line 7: 81.0 is not allowed (allowed: a whole number, at least 1)",
    ),
    "an unknown key": (
        [('metric = "accuracy"', 'metric = "accuracy"\nmetric_windw = 5')],
        f'experiment.metric_windw: unknown key. Did you mean "metric_window"? {KEYS_OF_EXPERIMENT}',
    ),
    "a key of another table": (
        [('metric = "accuracy"', 'metric = "accuracy"\ngrace_period = 5')],
        f"experiment.grace_period: unknown key. It belongs in [trial]. {KEYS_OF_EXPERIMENT}",
    ),
    "an unknown table": (
        [("[scheduler]", "[schedular]")],
        'schedular: unknown table [schedular]. Did you mean "scheduler"? Tables: experiment, trial, scheduler, atoms, '
        "scaling, search, launcher, timeouts, retries, checkpoint, driver, setup, simulation",
    ),
    "a key outside any table": (
        [("[experiment]", 'policy = "asha"\n[experiment]')],
        "policy: a key outside any table. It belongs in [scheduler]. Tables: experiment, trial, scheduler, atoms, scaling, "
        "search, launcher, timeouts, retries, checkpoint, driver, setup, simulation",
    ),
    "a table that is none": (
        [("[experiment]", "retries = 3\n[experiment]")],
        "retries: line 1: 3 is not allowed: must be a table (allowed: [retries] and its keys on the lines below)",
    ),
    "an unknown word": (
        [('"hypersched"', '"hypershed"')],
        'scheduler.policy: line 10: "hypershed" is not allowed: Did you mean "hypersched"? (allowed: "fifo" | "asha" | '
        '"sha" | "hyperband" | "rasda" | "fixed_split" | "hypersched" | "deadline")',
    ),
    "an option of another policy": (
        [('"hypersched"', '"asha"\nentrance = "closing"')],
        'scheduler.entrance: is an option of policy "hypersched", not of "asha"; "asha" takes stopping',
    ),
    "a wrong option": (
        [('"hypersched"', '"hypersched"\nallocation = "unifrom"')],
        'scheduler.allocation: line 11: "unifrom" is not allowed: Did you mean "uniform"? '
        '(allowed: "uniform" | "top" | "softmax" | "random" | "none")',
    ),
    "no metric": (
        [('metric = "accuracy"\n', "")],
        "experiment.metric: is missing: What trials report and the search is after. "
        "(allowed: the name of what the trial reports)",
    ),
    "no command": (
        [('command = ["sh", "train.sh"]\n', "")],
        "trial.command: is missing: Started once a rank. `python` is that of the virtual environment in which hpcsched runs. "
        '(allowed: a list of texts, such as ["python", "train.py"])',
    ),
    "an empty command": (
        [('["sh", "train.sh"]', "[]")],
        'trial.command: line 6: [] is not allowed: empty (allowed: a list of texts, such as ["python", "train.py"])',
    ),
    "a command in one text": (
        [('["sh", "train.sh"]', '"sh train.sh"')],
        'trial.command: line 6: "sh train.sh" is not allowed: a text, not a list; write ["sh", "train.sh"] '
        '(allowed: a list of texts, such as ["python", "train.py"])',
    ),
    "a program that is not on PATH": (
        [('["sh", "train.sh"]', '["no-such-program"]')],
        'trial.command: line 6: ["no-such-program"] is not allowed: program "no-such-program" is not on PATH, or may not be executed',
    ),
    "an empty space": (
        [(LR + "\n", ""), ("momentum = { choice = [0.9, 0.95, 0.99] }\n", "")],
        f"search.space: is empty: there is nothing to search. Give each hyperparameter a line under [search.space] {SPACE_ALLOWED}",
    ),
    "log of zero": (
        [(LR, "learning_rate = { log_uniform = [0, 1.0] }")],
        'search.space.learning_rate: line 14: {"log_uniform": [0, 1.0]} is not allowed: log_uniform needs low > 0, '
        f"not 0: zero has no logarithm {SPACE_ALLOWED}",
    ),
    "low above high": (
        [(LR, "learning_rate = { uniform = [1, 0.5] }")],
        'search.space.learning_rate: line 14: {"uniform": [1, 0.5]} is not allowed: low must be below high, not 1 and 0.5 '
        + SPACE_ALLOWED,
    ),
    "an infinite end": (
        [(LR, "learning_rate = { uniform = [0, inf] }")],
        f'search.space.learning_rate: line 14: {{"uniform": [0, Infinity]}} is not allowed: Infinity is not finite {SPACE_ALLOWED}',
    ),
    "nothing to choose": (
        [("[0.9, 0.95, 0.99]", "[]")],
        f'search.space.momentum: line 15: {{"choice": []}} is not allowed: choice is empty: nothing to choose from {SPACE_ALLOWED}',
    ),
    "a choice of NaN": (
        [("[0.9, 0.95, 0.99]", "[0.9, nan]")],
        f'search.space.momentum: line 15: {{"choice": [0.9, NaN]}} is not allowed: nan is not finite {SPACE_ALLOWED}',
    ),
    "a bare list": (
        [("{ choice = [0.9, 0.95, 0.99] }", "[0.9, 0.95]")],
        f"search.space.momentum: line 15: [0.9, 0.95] is not allowed: a bare list; write {{ choice = [0.9, 0.95] }} {SPACE_ALLOWED}",
    ),
    "a shape misspelt": (
        [("choice", "chioce")],
        f'search.space.momentum: line 15: {{"chioce": [0.9, 0.95, 0.99]}} is not allowed: Did you mean "choice"? {SPACE_ALLOWED}',
    ),
    "a hyperparameter's name with a control character": (
        [("momentum =", '"mo\\u0007mentum" =')],
        'search.space."mo\\u0007mentum": is no name for a hyperparameter: a letter or _, then letters, digits, '
        "'_', '.' and '-', at most 128",
    ),
    "a deadline of zero": (
        [('deadline = "2m"', 'deadline = "0m"')],
        'experiment.deadline: line 3: "0m" is not allowed: zero: nothing can be trained in no time (allowed: a duration '
        'such as "2h30m", the next clock time such as "17:30", or a date and time such as "2026-11-30T17:30")',
    ),
    "a deadline in the past": (
        [('deadline = "2m"', 'deadline = "2020-01-01T00:00"')],
        'experiment.deadline: line 3: "2020-01-01T00:00" is not allowed: is in the past',
    ),
    "hypersched without a deadline": (
        [('deadline = "2m"\n', "")],
        'experiment.deadline: is missing: policy "hypersched" plans towards a deadline, and this is not inside a Slurm job. '
        'Set one, such as deadline = "2h", or take policy "asha"',
    ),
    "an endless search": (
        [('deadline = "2m"\n', ""), ('"hypersched"', '"asha"')],
        'search.num_trials: is missing: sampler "random" never ends by itself and there is no deadline. '
        "Set num_trials, or [experiment] deadline",
    ),
    "a negative duration": (
        [("[scheduler]", '[timeouts]\nstart = "-5s"\n[scheduler]')],
        f'timeouts.start: line 10: "-5s" is not allowed: negative {DURATION_ALLOWED}',
    ),
    "a duration that is none": (
        [("[scheduler]", '[timeouts]\nstart = "5 minutes"\n[scheduler]')],
        f'timeouts.start: line 10: "5 minutes" is not allowed: not a duration {DURATION_ALLOWED}',
    ),
    "more GPUs an atom than a node has": (
        [("[scheduler]", "[atoms]\ngpus_per_atom = 8\ngpus_per_node = 4\n[scheduler]")],
        "atoms.gpus_per_atom: line 10: 8 is not allowed: an atom lies on one node, and a node has gpus_per_node = 4 (allowed: 1 to 4)",
    ),
    "a reserved variable": (
        [("[scheduler]", 'env = { RANK = "0" }\n[scheduler]')],
        'trial.env: line 9: {"RANK": "0"} is not allowed: RANK is reserved: hpcsched sets or removes it for every rank '
        "(CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, GROUP_RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, "
        "NODE_RANK, RANK, WORLD_SIZE, HPCSCHED_*, SLURM_*, PMI*, TORCHELASTIC_*) "
        '(allowed: a table of texts, such as { NCCL_DEBUG = "WARN" })',
    ),
    "a number as a variable": (
        [("[scheduler]", "env = { A = 1 }\n[scheduler]")],
        'trial.env: line 9: {"A": 1} is not allowed: A = 1 is not a text (put it in quotes) '
        '(allowed: a table of texts, such as { NCCL_DEBUG = "WARN" })',
    ),
    "too few trials for SHA": (
        [('"hypersched"', '"sha"\nnum_trials = 80')],
        "scheduler.num_trials: line 11: 80 is not allowed: too few for r = 1, R = 81, reduction_factor = 3: the last rung "
        "would be empty. Raise it, or grace_period (allowed: at least 81)",
    ),
    "a grid without points": (
        [("[search.space]", '[search]\nsampler = "grid"\n[search.space]')],
        "search.space.learning_rate: a grid needs the number of points of log_uniform: "
        "{ log_uniform = [0.0001, 1], num = 5 }",
    ),
    "points without a grid": (
        [("[1e-4, 1.0]", "[1e-4, 1.0], num = 5")],
        'search.space.learning_rate: line 14: 5 is not allowed: num is for sampler "grid"; the sampler is "random"',
    ),
    "a list without a file": (
        [("[search.space]", '[search]\nsampler = "list"\n[search.space]')],
        'search.list_file: is missing: sampler "list" reads its configurations from there',
    ),
    "a first configuration with an unknown key": (
        [("[search.space]", "[search]\nfirst = [{ learning_rate = 0.1, momentun = 0.9 }]\n[search.space]")],
        'search.first: line 14: {"learning_rate": 0.1, "momentun": 0.9} is not allowed: configuration 1: "momentun" is not in '
        '[search.space] (learning_rate, momentum). Did you mean "momentum"?',
    ),
    "a first configuration that is not whole": (
        [("[search.space]", "[search]\nfirst = [{ learning_rate = 0.1 }]\n[search.space]")],
        'search.first: line 14: {"learning_rate": 0.1} is not allowed: configuration 1: "momentum" is missing',
    ),
    "an assumed speed-up of one atom": (
        [("[scheduler]", "[scaling]\nassume = { 1 = 2.0, 2 = 3.0 }\n[scheduler]")],
        'scaling.assume: line 10: {"1": 2.0, "2": 3.0} is not allowed: speed-up is relative to one atom, so 1 = 1.0, not 2 '
        '(allowed: "linear" | "sqrt" | "none" | "measured" | a table of atoms and speed-up, such as { 1 = 1.0, 2 = 1.8 })',
    ),
    "a profile that is not there": (
        [("[scheduler]", '[scaling]\nprofile = "/no/such/profile.json"\n[scheduler]')],
        'scaling.profile: line 10: "/no/such/profile.json" is not allowed: no such file: /no/such/profile.json '
        "(allowed: the path of a file that `hpcsched profile` wrote)",
    ),
    "atoms to play with steps": (
        [("[scheduler]", '[atoms]\nnum_atoms = 4\n[launcher]\nkind = "srun"\n[scheduler]')],
        "atoms.num_atoms: line 10: 4 is not allowed: is for the local launcher on a machine without GPUs; "
        'with [launcher] kind = "srun" the job decides',
    ),
    "a metric with a control character": (
        [('"accuracy"', '"acc\\nuracy"')],
        'experiment.metric: line 2: "acc\\nuracy" is not allowed: holds a control character '
        "(allowed: the name of what the trial reports)",
    ),
}


@pytest.mark.parametrize("name", ONE_MISTAKE)
def test_a_mistake_is_told_with_file_key_value_and_what_is_allowed(name: str, tmp_path: Path) -> None:
    changes, message = ONE_MISTAKE[name]
    file = write_experiment(tmp_path, changed(*changes))
    with pytest.raises(ExperimentFileError) as caught:
        load(file)
    assert str(caught.value) == f"{file}: {message}"
    assert caught.value.exit_code == 2
    assert caught.value.key == message.partition(": ")[0]


def test_a_missing_script_and_folder_are_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, changed(("train.sh", "tarin.sh")))
    with pytest.raises(ExperimentFileError, match=f'script "tarin.sh" is not in {tmp_path}'):
        load(file)
    file = write_experiment(tmp_path, changed(("[scheduler]", 'cwd = "elsewhere"\n[scheduler]')))
    with pytest.raises(ExperimentFileError, match="no such folder"):
        load(file)


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = write_experiment(
        tmp_path, changed(('"2m"', '"0m"'), ("= 81", "= 0"), ("reduction_factor = 3", "reduction_factor = 1"))
    )
    with pytest.raises(ExperimentFileError) as caught:
        load(file)
    first, *rest = str(caught.value).splitlines()
    assert first == f"{file}: 3 mistakes"
    assert [line.split(":")[0].strip() for line in rest] == [
        "experiment.deadline", "trial.max_iterations", "scheduler.reduction_factor",
    ]  # fmt: skip


def test_a_wrong_key_is_not_compared_with_others(tmp_path: Path) -> None:
    # r = 82 > R, but R itself is wrong: one mistake, not a second that follows from the first.
    file = write_experiment(
        tmp_path, changed(("max_iterations = 81", 'max_iterations = "81"\ngrace_period = 82'))
    )
    with pytest.raises(ExperimentFileError) as caught:
        load(file)
    assert "mistakes" not in str(caught.value)


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, changed(("[trial]", "[trial")))
    with pytest.raises(ExperimentFileError, match=r"not valid TOML: .*line 5"):
        load(file)


def test_bytes_that_are_not_utf8_are_told_with_their_line(tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    file.write_bytes(VALID.encode() + b"# caf\xe9\n")
    with pytest.raises(ExperimentFileError, match="line 16: byte 0xe9 is not UTF-8"):
        load(file)


def test_a_file_that_is_not_there_names_its_neighbour(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    with pytest.raises(ExperimentFileError, match=r'no such file. Did you mean "experiment.toml"\?'):
        load(tmp_path / "experimnt.toml")


@pytest.mark.parametrize("path", [".", "/dev/null", "no\0name", "x" * 5000])
def test_what_is_no_file_is_an_input_error(path: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load(tmp_path / path)


def test_a_list_file_is_checked_line_by_line(tmp_path: Path) -> None:
    text = changed(("[search.space]", '[search]\nsampler = "list"\nlist_file = "c.jsonl"\n[search.space]'))
    file = write_experiment(tmp_path, text)
    with pytest.raises(ExperimentFileError, match="no such file"):
        load(file)
    for content, why in [
        ("", "holds no configuration"),
        ('{"learning_rate": 0.1, "momentum": 0.9}\n{"lr": 1}\n', 'line 2: "lr" is not in'),
        ('{"learning_rate": 0.1}\n', 'line 1: "momentum" is missing'),
        ("{]\n", "line 1 is not JSON"),
        ("[1]\n", "line 1: not a JSON object"),
        ('{"learning_rate": NaN, "momentum": 0.9}\n', "line 1: nan is not finite"),
    ]:
        (tmp_path / "c.jsonl").write_text(content)
        with pytest.raises(ExperimentFileError, match=why):
            load(file)


def test_a_container_hides_the_command_but_must_itself_be_there(tmp_path: Path) -> None:
    wrapped = changed(
        ('["sh", "train.sh"]', '["only-in-the-image"]'),
        ("[scheduler]", '[launcher]\nwrap = ["sh", "-c"]\n[scheduler]'),
    )
    assert load(write_experiment(tmp_path, wrapped)).trial.command == ("only-in-the-image",)
    file = write_experiment(tmp_path, wrapped.replace('wrap = ["sh"', 'wrap = ["no-such-container"'))
    with pytest.raises(ExperimentFileError, match=r'launcher\.wrap: .*"no-such-container" is not on PATH'):
        load(file)
