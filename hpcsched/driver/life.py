"""One driver life from the first check to the last word: `run_experiment`.

Order matters: everything that can be wrong with the input is found before the run folder is made, everything about
the folder before the machine is probed, everything about the machine before a trial starts.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import msgspec

from hpcsched.channel.keys import create_keys
from hpcsched.channel.server import Server
from hpcsched.config.settings import core_settings
from hpcsched.config.spec import ExperimentSpec
from hpcsched.core import events as ev
from hpcsched.core.enums import ExperimentState
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from hpcsched.driver import inbox as ib
from hpcsched.driver.addresses import addresses_towards
from hpcsched.driver.chores import (
    ask_for_the_end,
    look_at_asides,
    look_for_orders,
    seal,
    tell_how_the_disk_does,
    try_nodes,
)
from hpcsched.driver.clock import Clock
from hpcsched.driver.deadline import limits, reserve_s
from hpcsched.driver.folder import Start, make_run_folder, unmake_run_folder, was_never_begun
from hpcsched.driver.keeper import Chore, Keeper
from hpcsched.driver.loop import Loop
from hpcsched.driver.measured import profile_document, scaling_note
from hpcsched.driver.orderdesk import OrderDesk
from hpcsched.driver.painter import Painter
from hpcsched.driver.past import Past, read_past
from hpcsched.driver.ports import Ports, ephemeral_range
from hpcsched.driver.private import write_private
from hpcsched.driver.provenance import provenance
from hpcsched.driver.request import Request, Result, best_facts
from hpcsched.driver.roles import SEARCH, Roles
from hpcsched.driver.say import Told, say
from hpcsched.driver.screen import make_screen
from hpcsched.driver.sealer import Sealer
from hpcsched.driver.setup import set_up_nodes
from hpcsched.driver.signals import Signals, StartInterrupted
from hpcsched.driver.target import is_local, spec_and_folder, start_of
from hpcsched.driver.timecheck import (
    check_first_deadline,
    check_given_deadline,
    check_own_deadline,
    deadline_of,
)
from hpcsched.driver.whereabouts import meant, must_move, run_on_node, run_words
from hpcsched.errors import (
    HpcschedError,
    InputError,
    RunFolderError,
    SupersededError,
)
from hpcsched.eventlog.journal import JournalWriter
from hpcsched.eventlog.lease import Lease, acquire, read_lease
from hpcsched.eventlog.records import End, Header
from hpcsched.eventlog.status import read_status
from hpcsched.launch.allocation import Allocation, read_allocation
from hpcsched.launch.command import run_command
from hpcsched.launch.launcher import Launcher
from hpcsched.launch.local import LocalLauncher
from hpcsched.launch.openfiles import raise_soft_limit
from hpcsched.launch.orphans import end_orphans
from hpcsched.launch.probe import Probed, local_machine, probe_machine, step_gpus_of
from hpcsched.launch.turns import too_few
from hpcsched.launchspec import Channel
from hpcsched.runfolder import RunFolder, neat
from hpcsched.search.samplers import Sampler, make_sampler
from hpcsched.topology.assemble import MachineOptions
from hpcsched.topology.machine import Machine

SEAL_LIMIT_S = 120.0
CLOSE_S, STALLED_CLOSE_S = 30.0, 3.0
"""Longest wait for the journal's last records; the latter where the disk has not taken any for a while."""


def run_experiment(
    request: Request,
    *,
    environ: Mapping[str, str],
    stream: TextIO = sys.stdout,
    argv: tuple[str, ...] = (),
    roles: Roles = SEARCH,
) -> Result:
    """Run (or go on with) one experiment to its end. Raises InputError before anything has been started."""
    asked = request
    spec, root, start = spec_and_folder(request)
    request = msgspec.structs.replace(request, resume=start is None)
    allocation = read_allocation(environ, run_command, hostname=socket.gethostname())
    if is_local(spec, allocation):
        allocation = None
    settings = core_settings(spec)
    now_unix_s = time.time()
    file_deadline = deadline_of(spec, now_unix_s)
    ends_at = None if allocation is None else allocation.ends_at
    if not request.resume:
        check_first_deadline(spec, file_deadline, ends_at, now_unix_s)
    if allocation is not None and must_move(
        spec.driver.where, allocation, environ, run_command, srun_args=spec.launcher.srun_args, say=say
    ):
        return _run_on_node(asked, spec, root, allocation, environ, stream)
    was_there = root.exists()
    folder = make_run_folder(root, spec.text, start=start)
    inbox = ib.Inbox()
    with Told(), Signals(lambda name: inbox.put(ib.SignalCaught(meant(name, environ)))) as signals:
        lease: Lease | None = None
        is_refused = False
        is_again = folder.lease.exists()
        try:
            lease = acquire(folder, job_id="" if allocation is None else allocation.job_id)
            return _Life(
                request,
                spec,
                settings,
                allocation,
                folder,
                lease,
                environ,
                stream,
                argv,
                now_unix_s,
                roles,
                inbox,
                signals,
                is_again,
                start,
            ).run()
        except StartInterrupted as caught:
            if lease is not None and is_again and _is_ours(folder, lease):
                end_orphans(folder, None if allocation is None else allocation.job_id, environ)
            return _interrupted(folder, meant(str(caught), environ))
        except HpcschedError:
            is_refused = not asked.resume and lease is not None and _is_ours(folder, lease)
            raise
        finally:
            if lease is not None:
                lease.release()
            if is_refused:
                unmake_run_folder(folder, keep_root=was_there)


def _is_ours(folder: RunFolder, lease: Lease) -> bool:
    """Nobody else has taken the folder since."""
    try:
        return read_lease(folder) == lease.record
    except RunFolderError:
        return False


def _interrupted(folder: RunFolder, name: str) -> Result:
    """A signal has ended the start. The journal, if there is one, stands as it was."""
    say(f"{name} while starting: nothing was started; go on with it by `hpcsched run --resume {folder.root}`")
    if not was_never_begun(folder):
        trouble = Sealer(folder).finish(SEAL_LIMIT_S)
        if trouble is not None:
            say(f"log.h5 could not be made: {trouble}. `hpcsched report` makes it later from the journal")
    return Result(
        state=ExperimentState.SUSPENDED, exit_code=75, folder=folder, best=best_facts(folder),
        why=f"{name} while starting", is_told=True,
    )  # fmt: skip


def _run_on_node(
    request: Request,
    spec: ExperimentSpec,
    root: Path,
    allocation: Allocation,
    environ: Mapping[str, str],
    stream: TextIO,
) -> Result:
    """The driver on the job's first node; what came of it. Raises InputError when it could not begin (it has said why)."""
    words = run_words(str(neat(request.target)), str(neat(root)), request.overrides, resume=request.resume)
    code = run_on_node(allocation, words, environ, srun_args=spec.launcher.srun_args, stream=stream)
    folder = RunFolder(neat(root))
    if code == InputError.exit_code or not folder.segment(1).exists():
        raise InputError(
            f"the driver on {allocation.nodes[0]} did not begin (code {code}); it says why above"
        )
    return Result(
        state=read_status(folder).status.state,
        exit_code=code,
        folder=folder,
        best=best_facts(folder),
        is_told=True,
    )


def _waits(allocation: Allocation | None, began_at: float) -> dict[str, float]:
    """How long the job waited in the queue, and from its start to the driver's, seconds; empty where Slurm does not say."""
    if allocation is None or allocation.submitted_at is None or allocation.started_at is None:
        return {}
    return {
        "queue_s": max(0.0, allocation.started_at - allocation.submitted_at),
        "job_start_s": round(max(0.0, began_at - allocation.started_at), 1),
    }


class _Life:
    """The state of one call of `run_experiment`."""

    def __init__(
        self,
        request: Request,
        spec: ExperimentSpec,
        settings: Settings,
        allocation: Allocation | None,
        folder: RunFolder,
        lease: Lease,
        environ: Mapping[str, str],
        stream: TextIO,
        argv: tuple[str, ...],
        now_unix_s: float,
        roles: Roles,
        inbox: ib.Inbox,
        signals: Signals,
        is_again: bool,
        start: Start | None,
    ) -> None:
        self._roles = roles
        self._signals = signals
        self._start = start
        self._is_again = is_again  # another driver has held this folder
        self._request = request
        self._spec = spec
        self._settings = settings
        self._allocation = allocation
        self._folder = folder
        self._lease = lease
        self._environ = environ
        self._stream = stream
        self._argv = argv
        self._now_unix_s = now_unix_s
        self._inbox = inbox
        self._sealer = Sealer(folder)

    def run(self) -> Result:
        sampler = self._roles.sampler(make_sampler(self._spec, seed=self._spec.experiment.seed))
        past = read_past(self._folder, sampler) if self._request.resume else None
        self._lease.check_held()  # nothing of another driver's that came in the same moment is ended or replaced
        if past is not None and past.scheduler.state in (ExperimentState.FINISHED, ExperimentState.FAILED):
            self._end_what_was_left()  # its driver may have died between the last record and its own end
            self._seal()
            return self._result(past.scheduler.state, "this run has ended already")
        if past is not None and "experiment.deadline" in self._request.overrides:
            check_given_deadline(self._spec, past)
        elif past is not None:
            check_own_deadline(self._spec, past, self._folder, self._environ)
        bind = "tcp://127.0.0.1" if self._allocation is None else "tcp://0.0.0.0"
        keys = create_keys(self._folder.keys / str(self._lease.life))
        server = Server(keys, bind, deliver=self._inbox.put)
        try:
            self._end_what_was_left()
            self._set_up_nodes()
            probed = self._probe()
            machine = probed.machine
            for warning in probed.warnings:
                say(warning)
            if self._allocation is not None and self._allocation.no_kill is False and len(machine.nodes) > 1:
                say("the job was not started with --no-kill: when one node dies, Slurm ends the whole job")
            channel = Channel(
                endpoints=tuple(f"tcp://{address}:{server.port}" for address in self._addresses(machine)),
                server_key_file=str(keys.server_public_file),
                client_key_file=str(keys.client_secret_file),
            )
            launcher = self._launcher(probed)
            try:
                with OrderDesk(self._folder, bind, life=self._lease.life, put=self._inbox.put) as desk:
                    return self._conduct(sampler, past, server, desk, probed, channel, launcher)
            finally:
                launcher.close()
        finally:
            server.close()

    # ---- the parts

    def _set_up_nodes(self) -> None:
        command, allocation = self._spec.setup.per_node, self._allocation
        if command is None:
            return
        nodes = set_up_nodes(
            command,
            self._folder,
            () if allocation is None else allocation.nodes,
            job_id=self._job_id(),
            num_restarts=0 if allocation is None else allocation.num_restarts,
            cwd=Path(self._spec.trial.cwd),
            environ=self._environ,
            srun_args=self._spec.launcher.srun_args,
            say=say,
        )
        if allocation is not None:
            self._allocation = msgspec.structs.replace(allocation, nodes=nodes)

    def _probe(self) -> Probed:
        atoms, driver = self._spec.atoms, self._spec.driver
        options = MachineOptions(
            gpus_per_atom=atoms.gpus_per_atom,
            gpus_per_node=atoms.gpus_per_node,
            driver_cores=0 if self._allocation is None else driver.driver_cores,
            driver_memory_mb=0 if self._allocation is None else driver.driver_memory_mb,
            interface=self._spec.launcher.interface,
        )
        if self._allocation is None:
            return local_machine(atoms.num_atoms, options, self._environ, cache=self._folder.machine)
        return probe_machine(
            self._allocation,
            options,
            self._environ,
            run_command,
            srun_args=self._spec.launcher.srun_args,
            cache=self._folder.machine,
        )

    def _addresses(self, machine: Machine) -> tuple[str, ...]:
        if self._allocation is None:
            return ("127.0.0.1",)
        return addresses_towards([node.address or node.name for node in machine.nodes])

    def _launcher(self, probed: Probed) -> Launcher:
        prefix = raise_soft_limit(self._environ)
        if self._allocation is None:
            return LocalLauncher(self._folder, notify=self._inbox.put, prefix=prefix)
        from hpcsched.launch.srun import SrunLauncher

        if (warning := too_few(self._spec.launcher.max_steps, probed.machine)) is not None:
            say(warning)
        return SrunLauncher(
            self._folder,
            allocation=self._allocation,
            machine=probed.machine,
            step_gpus=step_gpus_of(self._allocation, probed),
            table=self._spec.launcher,
            environ=self._environ,
            notify=self._inbox.put,
            turn_limit_s=self._spec.timeouts.start / 4,
            prefix=prefix,
        )

    def _conduct(
        self,
        sampler: Sampler,
        past: Past | None,
        server: Server,
        desk: OrderDesk,
        probed: Probed,
        channel: Channel,
        launcher: Launcher,
    ) -> Result:
        spec = self._spec
        machine = probed.machine
        began_at = self._now_unix_s if past is None else past.header.began_at
        chain = spec.experiment.span == "chain"
        relative = spec.experiment.deadline_at is None
        if past is None:
            clock = Clock(time.time() - began_at)
        elif chain and relative:
            clock = Clock(past.last_time_s)
        else:
            clock = Clock(max(time.time() - began_at, past.last_time_s))
        now = clock.now()
        file_deadline = deadline_of(spec, began_at)
        if past is not None:
            extended = past.scheduler.deadline_s
            given = "experiment.deadline" in self._request.overrides
            if extended is not None and not given and (file_deadline is not None or chain):
                file_deadline = max(file_deadline or 0.0, extended)  # `hpcsched extend` outlives its driver
        ends_at = None if self._allocation is None else self._allocation.ends_at
        ends_s = None if ends_at is None else ends_at - time.time() + now
        limit = limits(
            file_deadline_s=file_deadline, allocation_ends_s=ends_s, reserve_s=reserve_s(spec), chain=chain
        )
        begun_with = self._start if past is None else start_of(past.header)
        assert begun_with is not None, "what has no past has a start"
        scheduler = self._roles.scheduler(self._settings, machine) if past is None else past.scheduler
        header = Header(
            life=self._lease.life,
            experiment=spec.text,
            name=spec.experiment.name,
            metric=spec.experiment.metric,
            settings=scheduler.settings if past is None else past.header.settings,
            began_at=began_at,
            deadline_s=limit.deadline_s,
            provenance={
                **provenance(
                    Path(begun_with.experiment_folder),
                    machine,
                    self._slurm_version(),
                ),
                **_waits(self._allocation, self._now_unix_s),
                "experiment_folder": begun_with.experiment_folder,
                "overrides": begun_with.overrides,
            },
            argv=self._argv,
            earlier=() if past is None else past.ends,
        )
        self._signals.begin_queueing()  # what comes from here on is the loop's to handle
        writer = JournalWriter(self._folder, header, durable=lambda n: self._inbox.put(ib.Durable(n)))
        painter = past.painter if past is not None else Painter(self._folder, header, scheduler)
        painter.take(header)
        screen = make_screen(machine, scheduler, spec.experiment.metric, self._stream)
        loop = Loop(
            spec=spec,
            folder=self._folder,
            scheduler=scheduler,
            sampler=sampler,
            machine=machine,
            launcher=launcher,
            server=server,
            channel=channel,
            writer=writer,
            inbox=self._inbox,
            clock=clock,
            ports=Ports(salt=f"{os.getuid()}-{self._job_id()}-{self._folder.root}", ephemeral=_ephemeral()),
            onlooker=screen,
            painter=painter,
            local=self._allocation is None,
            invented_gpus=probed.invented,
            began_at_unix_s=began_at,
            file_deadline_s=file_deadline,
            allocation_ends_s=ends_s,
            warm=spec.launcher.warm and spec.launcher.mpi == "none",
            one_node_spares=any(fact.slingshot for fact in probed.facts),
            first_n=0 if past is None else past.last_n,
            told={} if past is None else past.told,
            order_ids=() if past is None else past.order_ids,
        )
        self._lease.renew(
            endpoints=desk.endpoints(self._addresses(machine), is_local=self._allocation is None),
            server_key=desk.server_key,
        )
        self._lease.keep_renewing(
            lost=lambda error: self._inbox.put(ib.LeaseLost(str(error))), trouble=self._lease_trouble
        )
        keeper = Keeper(self._chores(loop, launcher, desk, invented=probed.invented), say)
        first: ev.Event
        if past is None:
            first = ev.ExperimentBegan(time=now, machine=machine, deadline_s=limit.deadline_s)
        else:
            first = ev.ExperimentResumed(time=now, machine=machine, deadline_s=limit.deadline_s)
            loop.redo(past.best, past.undone)
        keeper.start()
        try:
            state = loop.run(first)
            loop.wind_up()
        finally:
            keeper.close()
            screen.close()
        result = self._result(state, loop.why)
        if loop.superseded is None:
            result = self._say_what_was_measured(result, scheduler, writer, painter, clock.now())
            end = End(time=clock.now(), state=state, exit_code=result.exit_code, why=result.why)
            writer.append(end)
            painter.take(end)
            painter.close()
        complete = writer.close(STALLED_CLOSE_S if loop.stall else CLOSE_S)
        if not complete and loop.superseded is None:
            what = "the disk does not answer" if writer.trouble is None else writer.trouble.what
            say(f"the journal could not be written to its end: {what}")
        if loop.superseded is not None:
            raise SupersededError(f"{self._folder.root}: {loop.superseded}")
        self._seal()
        return result

    def _say_what_was_measured(
        self, result: Result, scheduler: Scheduler, writer: JournalWriter, painter: Painter, now: float
    ) -> Result:
        """Beside what was assumed: in the log, in the last words, and as a profile that a later run can use."""
        note = scaling_note(scheduler, now)
        writer.append(note)
        painter.take(note)
        document = profile_document(scheduler)
        if document is not None:
            try:
                write_private(self._folder.profile, msgspec.json.format(msgspec.json.encode(document)))
            except OSError as error:
                say(f"{self._folder.profile} could not be written: {error}")
        return msgspec.structs.replace(result, scaling=note.text)

    def _chores(self, loop: Loop, launcher: Launcher, desk: OrderDesk, *, invented: bool) -> list[Chore]:
        put = self._inbox.put
        chores = [
            look_at_asides(loop, launcher, put, invented=invented),
            look_for_orders(desk),
            tell_how_the_disk_does(loop, self._lease),
            seal(self._sealer),
        ]
        if self._allocation is not None:
            chores.append(ask_for_the_end(self._allocation, self._environ, put))
            srun_args = self._spec.launcher.srun_args
            chores.append(try_nodes(loop, self._environ, put, srun_args=srun_args))
        return chores

    def _lease_trouble(self, error: OSError | None) -> None:
        say(
            "the lease on the run folder is renewed again"
            if error is None
            else f"the lease on the run folder cannot be renewed ({error}): another driver may take the folder over"
        )

    def _end_what_was_left(self) -> None:
        if self._is_again:
            job_id = None if self._allocation is None else self._allocation.job_id
            for found in end_orphans(self._folder, job_id, self._environ):
                say(f"ended what an earlier driver had left: {found}")

    def _seal(self) -> None:
        trouble = self._sealer.finish(SEAL_LIMIT_S)
        if trouble is not None:
            say(f"log.h5 could not be made: {trouble}. `hpcsched report` makes it later from the journal")

    def _slurm_version(self) -> str | None:
        version = None if self._allocation is None else self._allocation.version
        return None if version is None else ".".join(f"{part:02d}" for part in version)

    def _job_id(self) -> str:
        return "" if self._allocation is None else self._allocation.job_id

    def _result(self, state: ExperimentState, why: str) -> Result:
        best = best_facts(self._folder)
        if state is ExperimentState.SUSPENDED:
            code = 75
        elif state is ExperimentState.FINISHED and best is not None:
            code = 0
        else:
            code = 1
        return Result(state=state, exit_code=code, folder=self._folder, best=best, why=why)


def _ephemeral() -> tuple[int, int]:
    try:
        return ephemeral_range(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text())
    except (OSError, ValueError):
        return (32768, 60999)
