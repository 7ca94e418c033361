"""Every key of an experiment file: what it may hold, its default, its unit, what it means.

One table drives reading (`hpcsched.config.load`) and the reference (`hpcsched.config.reference`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from hpcsched.config.kinds import (
    Deadline,
    Duration,
    Environment,
    Flag,
    Kind,
    Number,
    OneOf,
    Text,
    Whole,
    Words,
)
from hpcsched.config.options import POLICIES


class Required(msgspec.Struct, frozen=True):
    """Marks a key that has no default."""


REQUIRED = Required()

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_PATH = Text("a path; relative ones start at the experiment file's folder")


class Key(msgspec.Struct, frozen=True):
    """One key. `default` is the value used, None for none; `default_doc` says what None means."""

    table: str
    name: str
    kind: Kind
    default: Any
    doc: str
    unit: str = ""
    default_doc: str = ""

    @property
    def path(self) -> str:
        """Such as "trial.command"."""
        return f"{self.table}.{self.name}"


class Table(msgspec.Struct, frozen=True):
    name: str
    doc: str


TABLES = (
    Table("experiment", "What is sought, and until when."),
    Table("trial", "What one trial runs."),
    Table("scheduler", "The policy, and its own options (below)."),
    Table("atoms", "The smallest part of the machine that is handed out, and the sizes a trial may have."),
    Table("scaling", "How much faster a trial is on more atoms. One of the two keys."),
    Table("search", "Where configurations come from."),
    Table("search.space", "The hyperparameters, one key each (below)."),
    Table("launcher", "How ranks are started."),
    Table("timeouts", "When to stop waiting."),
    Table("retries", "How often to try again."),
    Table("checkpoint", "When to save."),
    Table("driver", "Where the driver runs and what it takes."),
    Table("setup", "What is done before the first trial."),
    Table("simulation", "Read by `hpcsched simulate` only."),
)

KEYS = (
    Key(
        "experiment", "name", Text("letters, digits, '.', '_' and '-', at most 100", _NAME, 100), None,
        "Names the run folder and the steps.", default_doc="the file's name without its ending",
    ),
    Key("experiment", "metric", Text("the name of what the trial reports", longest=200), REQUIRED, "What trials report and the search is after."),
    Key("experiment", "mode", OneOf(("max", "min")), "max", "Whether more or less of it is better."),
    Key("experiment", "metric_window", Whole(1), 1, "The score is the mean of the last so many reports.", "reports"),
    Key(
        "experiment", "deadline", Deadline(), None,
        "When the result must stand, counted from the start or a clock time. In a Slurm job never later than its end less the reserve.",
        "s", default_doc="none; in a Slurm job its end less the reserve",
    ),
    Key("experiment", "seed", Whole(0), 0, "Of the samplers and of every choice by chance."),
    Key(
        "experiment", "span", OneOf(("allocation", "chain")), "allocation",
        "Whether the end of a Slurm job is the end, or an interruption after which the next job goes on.",
    ),
    Key("experiment", "run_dir", _PATH, None, "The run folder.", default_doc="runs/NAME-DATE-TIME beside the file"),
    Key(
        "trial", "command", Words('a list of texts, such as ["python", "train.py"]', 1), REQUIRED,
        "Started once a rank. `python` is that of the virtual environment in which hpcsched runs.",
    ),
    Key("trial", "grace_period", Whole(1), 1, "r: iterations before a trial is first compared with others.", "iterations"),
    Key("trial", "max_iterations", Whole(1), 100, "R: iterations after which a trial is complete.", "iterations"),
    Key("trial", "env", Environment(), {}, "Environment variables of every rank, added to the driver's."),
    Key(
        "trial", "preload", Words('a list of module names, such as ["torchvision"]', 0, r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"), (),
        "Python modules that spare supervisors import ahead, so that a trial starts faster.",
    ),
    Key("trial", "cwd", _PATH, None, "Where the command runs.", default_doc="the experiment file's folder"),
    Key("scheduler", "policy", OneOf(tuple(POLICIES)), "hypersched", "Who runs, waits, grows and stops."),
    Key("scheduler", "reduction_factor", Whole(2), 4, "eta: one in so many goes on at each rung; rungs are r, r eta, r eta^2, ..."),
    Key("atoms", "gpus_per_atom", Whole(1, 1024), 1, "GPUs (ranks) of one atom, all of one node.", "GPUs"),
    Key("atoms", "multiple_of", Whole(1, 1024), 2, "A trial holds 1 atom or a multiple of this.", "atoms"),
    Key("atoms", "max_trial_atoms", Whole(1), None, "The most atoms one trial may hold.", "atoms", default_doc="no limit"),
    Key(
        "atoms", "gpus_per_node", Whole(1, 1024), None, "GPUs of each node, when what is read of the machine is not to be used. Where no node shows a GPU, CPU cores play so many.", "GPUs",
        default_doc="what the job holds on each node",
    ),
    Key(
        "atoms", "num_atoms", Whole(1, 100_000), None, "Local launcher on a machine without GPUs: how many atoms to play.", "atoms",
        default_doc="4",
    ),
    Key(
        "search", "sampler", OneOf(("random", "grid", "list", "optuna")), "random",
        "By chance, every combination, the lines of a file, or one of Optuna's samplers (extra `optuna`).",
    ),
    Key(
        "search", "num_trials", Whole(1), None, "The most configurations that are tried.", "trials",
        default_doc="grid and list: all; random and optuna: as many as fit before the deadline",
    ),
    Key("search", "list_file", _PATH, None, "JSON lines, one configuration each, for sampler \"list\".", default_doc="none"),
    Key(
        "search", "optuna_sampler", OneOf(("tpe", "gp")), None, "Which of Optuna's samplers.",
        default_doc="tpe",
    ),
    Key(
        "launcher", "kind", OneOf(("auto", "local", "srun")), "auto",
        "Processes of this machine, or Slurm steps; auto: srun inside a Slurm job, else local.",
    ),
    Key(
        "launcher", "binding", OneOf(("overlap", "slurm")), "overlap",
        "Who chooses the GPUs: hpcsched (Slurm 22.05 and later), or Slurm (--exact) where overlapping steps are refused.",
    ),
    Key("launcher", "mpi", OneOf(("none", "pmix")), "none", "Trials that are MPI programs: one task a rank through this plugin."),
    Key("launcher", "srun_args", Words('a list of texts, such as ["--network=single_node_vni"]'), (), "Added to every srun command."),
    Key("launcher", "wrap", Words('a list of texts, such as ["apptainer", "exec", "--nv", "IMAGE"]'), (), "Put before every rank's command."),
    Key(
        "launcher", "max_steps", Whole(1, 100_000), None, "The most steps alive at once; launches beyond wait.", "steps",
        default_doc="as many as the machine can need: two an atom (one may be ending) and the spares",
    ),
    Key(
        "launcher", "interface", Text("a network interface's name, such as \"ib0\"", r"[A-Za-z0-9][A-Za-z0-9._:-]*", 64), None,
        "The network that ranks and the driver talk over.", default_doc="that of the nodes' names",
    ),
    Key("launcher", "warm", Flag(), True, "Keep spare supervisors with modules imported, for fast starts."),
    Key("launcher", "spares_per_node", Whole(1, 64), 1, "How many spares wait on each node.", "spares"),
    Key(
        "timeouts",
        "start",
        Duration(),
        300.0,
        "From a launch until all ranks are at the loop; a restore gets twice a save's time on top.",
        "s",
    ),
    Key("timeouts", "silence", Duration(), 1800.0, "The longest iteration; a trial silent for longer is killed.", "s"),
    Key("timeouts", "preempt_grace", Duration(), 120.0, "From being asked to leave until the exit, the save included; at least twice what the last iteration and a save take as measured.", "s"),
    Key("timeouts", "kill_wait", Duration(), 10.0, "From a kill until its proof; then the atoms are set aside.", "s"),
    Key("timeouts", "group", Duration(), 600.0, "torch.distributed's own limit for a collective call.", "s"),
    Key(
        "timeouts", "reserve", Duration(zero=True), None, "Kept free before the end of the Slurm job, for the last saves.", "s",
        default_doc="from measured save times, at least 10 s",
    ),
    Key("retries", "crashed", Whole(0, 1000), 1, "After a crash, a lack of memory or a hang."),
    Key("retries", "node_failed", Whole(0, 1000), 3, "After the loss of a node, or of a GPU."),
    Key("retries", "launch_failed", Whole(0, 1000), 3, "After a launch that failed."),
    Key("retries", "fail_fast", Whole(0), 4, "The experiment fails when the first so many trials crash before any report; 0: never.", "trials"),
    Key("checkpoint", "budget", Number(0, 1, low_excluded=True), 0.05, "Share of the training time that saves may cost."),
    Key(
        "checkpoint", "background", Flag(), True,
        "Save while training goes on; where copies of the state do not fit in memory, and in MPI trials, it waits all the same.",
    ),
    Key(
        "driver", "where", OneOf(("auto", "here", "node")), "auto",
        "Where the driver runs: on the first node when nodes cannot connect back to here, always here, or always on the first node.",
    ),
    Key("driver", "driver_cores", Whole(0, 1024), 1, "Cores of its node that the driver keeps.", "cores"),
    Key("driver", "driver_memory_mb", Whole(0), 1024, "Memory of its node that the driver keeps.", "MB"),
    Key("setup", "per_node", Text("a shell command", longest=100_000), None, "Run once a node before its first trial.", default_doc="nothing"),
)  # fmt: skip
"""All keys but those of special shape: `[scaling]`, policy options, `[search] first` and `[search.space]`."""

SPECIAL_KEYS = {
    "scaling": ("assume", "profile"),
    "search": ("first", "space"),
}
"""Keys that `hpcsched.config.load` reads by functions of their own."""


def keys_of(table: str) -> dict[str, Key]:
    """The plain keys of one table by name, in the reference's order."""
    return {key.name: key for key in KEYS if key.table == table}
