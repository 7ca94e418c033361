"""Launcher for a Slurm allocation: an incarnation is a set of steps, each an srun process of ours.

Theory. srun is a slow, failing service, and none of its words is proof. So:

- what a step is asked for is a pure value (`steps`), what its errors mean is a table (`srunerrors`), and how fast steps are
  created is paced (`pace`);
- every srun has a thread of its own that waits for it, and no other thread ever waits for Slurm: `start`, `kill` and `note_step`
  return at once;
- after srun has ended, the step counts as gone only when `scontrol` says so. While the controller does not answer, the
  atoms stay where they are, and the thread asks again with growing pauses until it knows (`NodesGone`);
- ending escalates: the supervisors (told by the driver's channel) get a moment; then `scancel JOB.STEP`; then a *sweep* of each
  node, a helper step that kills and looks for itself; then SIGKILL of srun's main process; then `scancel -s KILL` and sweeps,
  again and again;
- a node that does not even take a sweep is silent. Then srun is left alone for a while: it ends by itself once Slurm has
  declared the node dead, whereas the step of a killed srun stays for ever (seen on 22.05.8).

Steps carry a name made of the run folder, trial and incarnation, so that the next driver life finds what this one left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from hpcsched.errors import CommandError, LaunchError
from hpcsched.launch.allocation import Allocation, reason_of
from hpcsched.launch.checks import answer_in
from hpcsched.launch.command import run_command
from hpcsched.launch.environment import srun_environment
from hpcsched.launch.launcher import (
    LaunchNotice,
    NodeLost,
    NodesGone,
    Notify,
    StepEnded,
    StepRefused,
    is_for_good,
)
from hpcsched.launch.nodelist import expand_nodelist
from hpcsched.launch.openfiles import prefixed
from hpcsched.launch.pace import Pace, PaceLimits
from hpcsched.launch.slurmsteps import Presence, live_steps, presence_of
from hpcsched.launch.srunerrors import UNKNOWN, SrunError, classify, failed_nodelists
from hpcsched.launch.stepping import SteppingTable, stepping_of
from hpcsched.launch.steps import (
    Binding,
    Step,
    check_step,
    helper_step,
    run_mark,
    spare_step,
)
from hpcsched.launch.sweep import GONE, marks_of
from hpcsched.launch.tails import tail_of
from hpcsched.launch.turns import Ticket, Turn, Turns, most_steps
from hpcsched.launchspec import LaunchNode, LaunchSpec, SpareSpec
from hpcsched.runfolder import RunFolder
from hpcsched.topology.machine import Machine

log = logging.getLogger(__name__)

ERROR_BYTES = 8000
"""Read from the end of srun's output."""
MAX_SWEEPS = 8
"""At once, over all incarnations."""
TURN_LIMIT_S = 75.0
"""A step that has not had its turn for so long is refused: its trial is to be tried again rather than to count as one that hangs."""
CHECK_LIMIT_S = 60.0
SCANCEL_LIMIT_S = 15.0
"""`scancel -s KILL` has been seen to hang for 12 s at a dead node."""


class LauncherOptions(SteppingTable, Protocol):
    """The [launcher] table of an experiment file."""

    @property
    def max_steps(self) -> int | None: ...
    @property
    def spares_per_node(self) -> int: ...


class KillLimits(msgspec.Struct, frozen=True):
    """Seconds of the escalation."""

    grace_s: float = 2.0
    """The supervisors, told by the channel, end by themselves."""
    scancel_s: float = 3.0
    """After `scancel JOB.STEP`."""
    srun_s: float = 2.0
    """After SIGTERM to an srun that has no step yet."""
    settle_s: float = 3.0
    """srun has ended: so long Slurm may still show the step before it is told as unproven."""
    sweep_s: float = 15.0
    """Longest wait for a sweep of a node."""
    node_s: float = 120.0
    """So long srun may wait for Slurm to declare a node dead (SlurmdTimeout, often 300 s, or sooner)."""
    close_s: float = 30.0
    """Longest wait of `close`."""
    prove_s: float = 3600.0
    """A step that Slurm still shows after so long is given up; its atoms stay out of use."""


class _StepRun:
    """One srun process and what became of it."""

    def __init__(self, step: Step, log_file: Path, *, of_spare: bool = False) -> None:
        self.life: _Life
        """Whose step it is; a spare's step changes its life when it is adopted."""
        self.step = step
        self.log_file = log_file
        self.process: subprocess.Popen[bytes] | None = None
        self.step_id: str | None = None
        self.ticket = Ticket(of_spare=of_spare)
        self.creating = False
        self.heard = False
        """A supervisor of it has said hello."""
        self.exited = threading.Event()
        """srun has ended, or was never started."""
        self.result: StepEnded | None = None
        self.refusal: tuple[SrunError, str] | None = None
        self.mark_ids = (0, 0)
        """What the environment of its processes names: trial and incarnation when it was created."""
        self.gone: set[str] = set()
        """Nodes where nothing of it runs any more: that was checked."""
        self.is_silent = False
        """A node of it did not take a sweep: srun may end when Slurm declares the node dead, minutes later or never."""
        self.lost: set[str] = set()
        """Nodes that Slurm declared dead: it forgets their steps, but on a node that was only cut off the ranks run on."""

    def step_is_gone(self) -> None:
        """Slurm knows the step no more."""
        self.gone.update(node for node in self.step.nodes if node not in self.lost)

    @property
    def left(self) -> tuple[str, ...]:
        return tuple(node for node in self.step.nodes if node not in self.gone)


class _Life:
    """One incarnation, or a spare that waits (its number, 0)."""

    def __init__(self, ids: tuple[int, int], runs: list[_StepRun]) -> None:
        self.ids = ids
        self.runs = runs
        for run in runs:
            run.life = self
        self.cancelled = False
        """Nothing more of it shall be started."""
        self.is_forgotten = False
        self.done = threading.Event()
        self.final: list[LaunchNotice] = []

    @property
    def is_waited_for(self) -> bool:
        """Its end can be had: not when all that is left of it are sruns whose nodes are silent."""
        if self.done.is_set():
            return False
        open_runs = [run for run in self.runs if run.result is None and run.refusal is None]
        return not open_runs or any(not run.is_silent for run in open_runs)


class SrunLauncher:
    """Brings up supervisors by srun inside the allocation. See `Launcher`.

    `machine`: whose GPUs the job holds where Slurm does not say. `step_gpus`: what a probe found that a step can be shown. `prefix`: words
    before each srun of a trial or spare (see `openfiles`). Raises nothing: what cannot be started is a notice.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        allocation: Allocation,
        machine: Machine,
        table: LauncherOptions,
        notify: Notify,
        step_gpus: Mapping[str, int] | None = None,
        environ: Mapping[str, str] | None = None,
        python: str = sys.executable,
        pace: PaceLimits = PaceLimits(),  # noqa: B008 - frozen
        limits: KillLimits = KillLimits(),  # noqa: B008 - frozen
        turn_limit_s: float = TURN_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
        prefix: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._job_id = allocation.job_id
        self._stepping = stepping_of(allocation, machine, table, step_gpus=step_gpus, python=python)
        if self._stepping.binding != table.binding:
            log.warning(
                "Slurm %s is older than 22.05: steps cannot share GPUs, so Slurm picks them",
                allocation.version,
            )
        self._node_memory_mb: dict[str, int | None] = {}
        for atom in machine.atoms:
            before = self._node_memory_mb.get(atom.node, 0)
            known = atom.memory_mb is not None and before is not None
            self._node_memory_mb[atom.node] = (before or 0) + (atom.memory_mb or 0) if known else None
        self._environ = srun_environment(os.environ if environ is None else environ) | {
            "SLURM_JOB_ID": allocation.job_id,
            "HPCSCHED_RUN_DIR": str(folder.root),
        }
        self._notify = notify
        self._limits = limits
        self._clock = clock
        self._prefix = tuple(prefix)
        lock = threading.RLock()
        self._lock = threading.Condition(lock)
        self._pace = Pace(pace, clock())
        most = most_steps(machine, table.spares_per_node) if table.max_steps is None else table.max_steps
        self._turns = Turns(most, len(machine.atoms), self._pace, lock, clock)
        self._turn_limit_s = turn_limit_s
        self._lives: dict[tuple[int, int], _Life] = {}
        self._sweeps = threading.Semaphore(MAX_SWEEPS)

    @property
    def binding(self) -> Binding:
        """What is really used: "slurm" where this Slurm is too old for "overlap"."""
        return self._stepping.binding

    # ---- Launcher

    @property
    def keeps_spares(self) -> bool:
        return self._stepping.binding == "overlap"

    def start(self, spec: LaunchSpec) -> None:
        try:
            steps = self._stepping.trial(spec, str(self._folder.launch_file(spec.trial_id, spec.incarnation)))
        except LaunchError as error:
            self._notify(StepRefused(spec.trial_id, spec.incarnation, str(error), 60.0, "site"))
            return
        folder = self._folder.incarnation(spec.trial_id, spec.incarnation)
        runs = [_StepRun(step, folder / f"srun-{number}.log") for number, step in enumerate(steps)]
        self._begin(_Life((spec.trial_id, spec.incarnation), runs))

    def start_spare(self, spec: SpareSpec) -> None:
        file = self._folder.spare_file(spec.number)
        step = spare_step(
            spec,
            job_gpus=self._stepping.job_gpus,
            memory_mb=self._node_memory_mb.get(spec.node),
            spare_file=str(file),
            python=self._stepping.python,
            srun_args=self._stepping.srun_args,
        )
        self._begin(_Life((spec.number, 0), [_StepRun(step, file.with_suffix(".srun.log"), of_spare=True)]))

    def adopt(self, spec: LaunchSpec, spares: Sequence[int]) -> None:
        ended: list[LaunchNotice] = []
        with self._lock:
            life = _Life((spec.trial_id, spec.incarnation), [])
            for number in spares:
                for run in self._lives.pop((number, 0)).runs:
                    run.life = life
                    self._turns.adopted(run.ticket)
                    life.runs.append(run)
                    if run.result is not None or run.refusal is not None:  # it had ended meanwhile
                        run.refusal = None
                        run.result = self._ended(run, 1, "the spare had ended")
                        ended.append(run.result)
            life.final += ended
            if len(ended) == len(life.runs):
                life.done.set()
            self._lives[life.ids] = life
        for notice in ended:
            self._notify(notice)

    def _begin(self, life: _Life) -> None:
        with self._lock:
            self._lives[life.ids] = life
        for run in life.runs:
            self._thread(self._run_step, run)

    def note_step(self, trial_id: int, incarnation: int, step_id: str) -> None:
        with self._lock:
            life = self._lives.get((trial_id, incarnation))
            if life is None or any(run.step_id == step_id and run.heard for run in life.runs):
                return
            # Of several steps the hello does not say which one it is; a lone step needs no question.
            run = next((run for run in life.runs if run.step_id == step_id), None)
            if run is None and len(life.runs) == 1:
                run = life.runs[0]
            if run is not None:
                self._heard(run, step_id)
                return
        self._thread(self._match_step, life, step_id)

    def kill(self, trial_id: int, incarnation: int) -> None:
        with self._lock:
            life = self._lives.get((trial_id, incarnation))
        if life is None:
            self._notify(StepEnded(trial_id, incarnation, 0, "nothing was launched", ()))
        else:
            self._thread(self._kill, life)

    def forget(self, trial_id: int, incarnation: int) -> None:
        with self._lock:
            life = self._lives.get((trial_id, incarnation))
            if life is not None:
                life.is_forgotten = True
                self._drop(life)

    def _drop(self, life: _Life) -> None:
        """Its threads keep what they need. Until it is done `close` has to end it."""
        if life.is_forgotten and life.done.is_set():
            self._lives.pop(life.ids, None)

    def check(self, node: LaunchNode, *, invented: bool) -> str | None:
        if self._stepping.binding == "slurm":
            raise LaunchError("Slurm picks the GPUs here: no step can be told to look at these")
        argv = check_step(
            node,
            job_gpus=self._stepping.job_gpus,
            python=self._stepping.python,
            invented=invented,
            srun_args=self._stepping.srun_args,
        ).argv
        try:
            text = run_command(argv, timeout_s=CHECK_LIMIT_S, env=self._environ)
        except CommandError as error:
            text = error.stdout or reason_of(error)
        return answer_in(text)

    def close(self) -> None:
        with self._lock:
            alive = [life for life in self._lives.values() if life.is_waited_for]
        for life in alive:
            self._thread(self._kill, life)
        end = self._clock() + self._limits.close_s
        with self._lock:
            while any(life.is_waited_for for life in alive) and self._clock() < end:
                self._lock.wait(end - self._clock())

    # ---- one srun: a thread each

    def _run_step(self, run: _StepRun) -> None:
        turn = self._turns.take(run.ticket, self._turn_limit_s)
        if turn is Turn.NOW:
            self._create(run)
        elif turn is Turn.LATE:
            run.refusal = self._late()
            run.gone.update(run.step.nodes)
        if run.process is None:
            run.exited.set()
            if run.result is None and run.refusal is None:
                run.gone.update(run.step.nodes)
                run.result = self._ended(run, 0, "cancelled before it was started")
            self._step_is_over(run)
            return
        code = run.process.wait()
        run.exited.set()
        with self._lock:
            self._turns.ended(run.ticket)
            self._creation_over(run)
        text = tail_of(run.log_file, ERROR_BYTES)
        lost = {node for text_list in failed_nodelists(text) for node in expand_nodelist(text_list)}
        run.lost.update(lost)
        for node in sorted(lost):
            self._notify(NodeLost(node, f"Slurm says: Node failure on {node}"))
        log.info("step %s (%s) ended with code %d", run.step.name, run.step_id, code)
        kind = classify(text)
        failed_to_start = code != 0 and not run.heard and not run.life.cancelled
        if failed_to_start and kind.whose == "slurm":
            # Refused before there was a step; to ask Slurm about it now would only take its time.
            run.refusal = (kind, text)
            run.gone.update(run.step.nodes)
            self._step_is_over(run)
            return
        if self._step_gone(run, self._limits.settle_s):
            run.step_is_gone()
        else:
            self._sweep(run)
        if failed_to_start and kind is UNKNOWN and not run.left:
            kind = self._look_into(run, code)
        with self._lock:  # a spare may be adopted just now
            if failed_to_start and not run.left:
                run.refusal = (kind, text)
            else:
                run.result = self._ended(run, code, text)
        self._step_is_over(run)
        self._prove_the_rest(run)

    def _late(self) -> tuple[SrunError, str]:
        """Why a step has not had its turn."""
        waited = f"it has waited {self._turn_limit_s:.6g} s for its turn"
        if self._turns.are_all_taken:
            text = f"{waited}: {self._turns.most} steps are alive, as many as may be"
            return SrunError(
                "", "slurm", 60.0, "raise [launcher] max_steps, or let trials hold more atoms"
            ), text
        text = f"{waited}: {self._pace.num_creating} steps are being created"
        return SrunError(
            "", "slurm", 5.0, "many start at once, or Slurm is slow; the launch is tried again"
        ), text

    def _look_into(self, run: _StepRun, code: int) -> SrunError:
        """srun has failed with words that nobody knows: is it this launch, or would any step fail now?"""
        if code < 0:
            what = f"srun was killed by signal {-code} where the driver runs"
            return SrunError(
                "", "slurm", 5.0, f"{what}: is there too little memory? The launch is tried again"
            )
        for node in run.step.nodes:
            step = helper_step(
                node,
                ("true",),
                name=f"{run_mark(str(self._folder.root))}look",
                srun_args=self._stepping.srun_args,
            )
            try:
                with self._sweeps:
                    run_command(step.argv, timeout_s=self._limits.sweep_s, env=self._environ)
            except CommandError as error:
                what = f"an empty step does not run on {node} either ({reason_of(error)})"
                return SrunError("", "slurm", 5.0, f"{what}; the launch is tried again")
        return UNKNOWN

    def _create(self, run: _StepRun) -> None:
        run.creating = True
        run.mark_ids = run.life.ids
        env = self._environ | marks_of(str(self._folder.root), *run.mark_ids)
        try:
            if run.step.hosts:
                hosts = run.log_file.with_suffix(".hosts")
                hosts.write_text("".join(f"{host}\n" for host in run.step.hosts))
                env["SLURM_HOSTFILE"] = str(hosts)
            argv = prefixed(self._prefix, run.step.argv, env)
            with run.log_file.open("ab") as output:
                process = subprocess.Popen(
                    argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )  # fmt: skip
        except OSError as error:
            with self._lock:
                self._turns.ended(run.ticket)
                self._creation_over(run)
            run.refusal = (
                SrunError("", "site" if is_for_good(error) else "slurm", 30.0, "srun could not be run"),
                f"{run.step.argv[0]}: {error}",
            )
            run.gone.update(run.step.nodes)
            return
        log.info("step %s: srun %d: %s", run.step.name, process.pid, " ".join(run.step.argv))
        with self._lock:
            run.process = process
            cancelled = run.life.cancelled
        if cancelled:  # between its turn and now
            self._thread(self._kill_step, run, 0.0)

    def _ended(self, run: _StepRun, code: int, text: str) -> StepEnded:
        gone = tuple(node for node in run.step.nodes if node in run.gone)
        return StepEnded(*run.life.ids, code, text[-2000:], gone)

    def _step_is_over(self, run: _StepRun) -> None:
        """Tell the driver; a refusal only once the other steps of the incarnation are over, too."""
        with self._lock:
            life = run.life
            refused = next((each for each in life.runs if each.refusal is not None), None)
            over = all(each.result is not None or each.refusal is not None for each in life.runs)
            if refused is None:
                assert run.result is not None, "a step is over without a result"
                notices: list[LaunchNotice] = [run.result]
                life.final += notices
            elif over:
                notices = [self._refusal(life, refused)]
                for each in life.runs:
                    if each.result is not None and each.result not in life.final:
                        notices.append(each.result)
                life.final += notices
            else:
                notices = []
            if over:
                life.done.set()
                self._drop(life)
            self._lock.notify_all()
        if refused is not None and not over:
            self._thread(self._kill, life, 0.0)
        for notice in notices:
            self._notify(notice)

    def _refusal(self, life: _Life, run: _StepRun) -> StepRefused:
        assert run.refusal is not None, "only a refused step has a refusal"
        kind, text = run.refusal
        delay_s = kind.retry_after_s
        if run.process is not None:  # else Slurm was not asked
            delay_s = self._pace.refused(delay_s, self._clock(), slow_down=kind.whose == "slurm")
        words = text.strip()[-1500:] or "srun said nothing"
        return StepRefused(*life.ids, f"{words}\n({kind.advice})", delay_s, kind.whose)

    # ---- proof

    def _step_gone(self, run: _StepRun, limit_s: float) -> bool:
        """Ask Slurm until it says that the step is gone; it may show it for a moment after its end."""
        end = self._clock() + limit_s
        pause_s = 0.05
        while True:
            presence, run.step_id = presence_of(run.step_id, run.step.name, self._job_id, self._environ)
            if presence is Presence.GONE:
                return True
            if self._clock() + pause_s > end:
                return False
            self._wait(pause_s)
            pause_s = min(2 * pause_s, 0.8)

    def _sweep(self, run: _StepRun) -> tuple[str, ...]:
        """Look on each node that is left, all at once; those where nothing runs any more."""
        nodes = run.left
        found: list[str] = []

        def look(node: str) -> None:
            if self._sweep_node(run, node):
                found.append(node)

        threads = [threading.Thread(target=look, args=(node,), daemon=True) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.gone.update(found)
        return tuple(node for node in nodes if node in run.gone)

    def _sweep_node(self, run: _StepRun, node: str) -> bool:
        ids = map(str, run.mark_ids)
        command = (
            self._stepping.python,
            "-P",
            "-m",
            "hpcsched.launch.sweep",
            str(self._folder.root),
            *ids,
            node,
        )
        name = f"{run_mark(str(self._folder.root))}sweep"
        step = helper_step(node, command, name=name, srun_args=self._stepping.srun_args)
        with self._sweeps:
            try:
                said = run_command(step.argv, timeout_s=self._limits.sweep_s, env=self._environ)
            except CommandError as error:
                log.info("sweep of %s: %s", node, error)
                return False
        return GONE in said

    def _prove_the_rest(self, run: _StepRun) -> None:
        """Kill and ask, with growing pauses, until nothing is left on any node."""
        end = self._clock() + self._limits.prove_s
        pause_s = 0.5
        while run.left and self._clock() < end:
            self._wait(pause_s)
            pause_s = min(2 * pause_s, 30.0)
            presence, run.step_id = presence_of(run.step_id, run.step.name, self._job_id, self._environ)
            if presence is Presence.UNKNOWN:
                continue  # the controller is away: a sweep could not be started either
            before = run.left
            if presence is Presence.GONE:
                run.step_is_gone()
            elif run.step_id is not None:
                self._scancel(run.step_id, force=True)
            self._sweep(run)
            nodes = tuple(node for node in before if node in run.gone)
            if nodes:
                self._notify(NodesGone(*run.life.ids, nodes))

    # ---- hello

    def _heard(self, run: _StepRun, step_id: str) -> None:
        run.step_id = step_id
        run.heard = True
        self._pace.worked()
        self._creation_over(run)

    def _match_step(self, life: _Life, step_id: str) -> None:
        """Which of several steps has this id? Slurm knows its name."""
        steps = live_steps(step_id, self._environ)
        with self._lock:
            for run in life.runs:
                if any(step.name == run.step.name for step in steps or ()):
                    self._heard(run, step_id)

    def _creation_over(self, run: _StepRun) -> None:
        if run.creating:
            run.creating = False
            self._pace.created()
            self._turns.wake()

    # ---- the end: a thread each

    def _kill(self, life: _Life, grace_s: float | None = None) -> None:
        with self._lock:
            again = life.done.is_set()
            life.cancelled = True
            for run in life.runs:
                self._turns.cancel(run.ticket)
        if again:
            for notice in life.final:
                self._notify(notice)
            return
        for run in life.runs:
            self._thread(self._kill_step, run, self._limits.grace_s if grace_s is None else grace_s)

    def _kill_step(self, run: _StepRun, grace_s: float) -> None:
        limits = self._limits
        if run.exited.wait(grace_s if run.heard else 0.0):
            return
        presence, step_id = presence_of(run.step_id, run.step.name, self._job_id, self._environ)
        if step_id is not None:
            run.step_id = step_id
        if run.process is None:
            return  # `_create` looks whether it was cancelled
        if presence is Presence.ALIVE and step_id is not None:
            self._thread(self._scancel, step_id)
            if run.exited.wait(limits.scancel_s):
                return
            gone = self._sweep(run)
            if gone:
                self._notify(NodesGone(*run.life.ids, gone))
            with self._lock:
                run.is_silent = bool(run.left)
                self._lock.notify_all()
            if run.exited.wait(limits.node_s if run.left else 0.0):
                return
        else:
            run.process.terminate()
            if run.exited.wait(limits.srun_s):
                return
        log.warning("step %s: srun does not end; SIGKILL", run.step.name)
        run.process.kill()  # its second process then ends the tasks, and the thread that waits for it looks after the rest

    def _scancel(self, step_id: str, force: bool = False) -> None:
        """Judge by the step, not by what scancel says: it complains about steps that it does signal."""
        argv = ("scancel", *(("-s", "KILL") if force else ()), step_id)
        with contextlib.suppress(CommandError):
            run_command(argv, timeout_s=SCANCEL_LIMIT_S, env=self._environ)

    def _wait(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def _thread(self, target: Callable[..., None], *args: object) -> None:
        threading.Thread(target=self._guarded, args=(target, args), name="hpcsched-srun", daemon=True).start()

    def _guarded(self, target: Callable[..., None], args: Sequence[object]) -> None:
        try:
            target(*args)
        except Exception:
            log.exception("launcher: a thread of it failed")
