"""The driver's loop: one queue in, the core in the middle, one writer and one performer out.

Theory. Everything that happens (messages, steps that end, timers, signals, what users ask) becomes core events.
The core answers with actions. Event and actions are appended to the journal as one step, and *only when that step
is durable* are the actions performed and the report that caused them answered. So whatever a trial was told, and
whatever was started, is in the log: a driver killed at any instant can be replayed to exactly that point.

The loop never waits for the disk or for Slurm: the writer, the channel, the launcher and the keeper have threads
of their own and put what they learn into the inbox.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from hpcsched import wire
from hpcsched.channel.server import Arrived, Server
from hpcsched.config.duration import format_duration
from hpcsched.config.spec import ExperimentSpec
from hpcsched.core import actions as act
from hpcsched.core import events as ev
from hpcsched.core.enums import ExperimentState, Outcome, PreemptReason, TrialState
from hpcsched.core.ids import TrialId
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver import inbox as ib
from hpcsched.driver.aside import NUM_CHECKS, Aside, Kept
from hpcsched.driver.chain import Link
from hpcsched.driver.clerk import Clerk, Times
from hpcsched.driver.clock import Clock
from hpcsched.driver.crew import Crew, Effects, picked_text, restart_text, supervisor_peer
from hpcsched.driver.deadline import limits, reserve_s
from hpcsched.driver.diverged import Diverged
from hpcsched.driver.filing import Filing
from hpcsched.driver.painter import Painter
from hpcsched.driver.ports import Ports
from hpcsched.driver.presence import Presence
from hpcsched.driver.private import write_private
from hpcsched.driver.sparekeeper import SpareKeeper
from hpcsched.driver.specmaker import SpecMaker
from hpcsched.driver.suspects import NUM_LOSSES, NUM_TRIALS, Suspects
from hpcsched.driver.timers import Timers
from hpcsched.driver.told import tell_sampler
from hpcsched.driver.undone import Undone
from hpcsched.driver.unread import Unread
from hpcsched.errors import LaunchError, SupersededError
from hpcsched.eventlog.journal import JournalWriter
from hpcsched.eventlog.reader import newest_life
from hpcsched.eventlog.records import Note, Step
from hpcsched.launch.launcher import (
    Launcher,
    NodeLost,
    NodesGone,
    StepEnded,
    StepRefused,
)
from hpcsched.launchspec import Channel
from hpcsched.orders import Answer
from hpcsched.runfolder import RunFolder
from hpcsched.search.samplers import Sampler
from hpcsched.topology.machine import AtomId, Machine, Placement

TICK_S = 0.25
"""Longest wait of the loop: silence, timers and the view are looked at so often."""
LOOK_S = 0.1
"""Crews are looked at (silence, escalation, spares) at most so often."""
STOPPED_AFTER_S = 2.0
"""A gap between two rounds that is longer means that the driver itself was stopped: nobody's silence counts."""
STALL_S = 2.0
"""The journal has not become durable for so long: whatever only ends things is done without it."""
END_STALL_S = 5.0
"""The experiment is to end and the journal has not become durable for so long: it ends without it."""
REFUSED_AGAIN_S = 10.0
"""A start that was not possible here is tried again after so long."""
FILES_S = 5.0
"""A run that can be resumed waits so long at its end for `best/` and deletions."""
FILES_LAST_S = 600.0
"""One that is finished, so long: where there are no hard links `best/` is a copy, and the run's whole worth."""
END_WAIT_S = 8.0
"""Longest wait for the last trials when the experiment is over. With `FILES_S` it is less than half of Slurm's KillWait (30 s unless a
site has changed it), by when the log is to be sealed; whoever still runs is ended after that, by the launcher."""


class Onlooker(Protocol):
    """Whoever shows the run: called in the loop's thread, must be quick."""

    def step(self, event: ev.Event, actions: list[act.Action]) -> None: ...
    def note(self, time_s: float, text: str) -> None: ...
    def refresh(self, now: float) -> None: ...


class _Pending(msgspec.Struct):
    record: int
    """Number of the step's record in the segment."""
    actions: list[act.Action]
    reply: tuple[Crew, int] | None
    answers: list[tuple[ib.Ordered, Answer]]
    """To orders that wait for this record or one before it."""
    hurried: bool = False
    """What only ends things has been done before it was durable."""


class Loop:
    """Runs one driver life to its end. All collaborators come ready made (see `hpcsched.driver.life`)."""

    def __init__(
        self,
        *,
        spec: ExperimentSpec,
        folder: RunFolder,
        scheduler: Scheduler,
        sampler: Sampler,
        machine: Machine,
        launcher: Launcher,
        server: Server,
        channel: Channel,
        writer: JournalWriter,
        inbox: ib.Inbox,
        clock: Clock,
        ports: Ports,
        onlooker: Onlooker,
        painter: Painter,
        local: bool,
        invented_gpus: bool,
        began_at_unix_s: float,
        file_deadline_s: float | None,
        allocation_ends_s: float | None,
        warm: bool,
        one_node_spares: bool,
        first_n: int,
        told: dict[TrialId, tuple[int, TrialState]],
        order_ids: Collection[str],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._scheduler = scheduler
        self._sampler = sampler
        self._machine = machine
        self._nodes = {node.name: node for node in machine.nodes}
        self._launcher = launcher
        self._server = server
        self._channel = channel
        self._writer = writer
        self._inbox = inbox
        self._clock = clock
        self._specs = SpecMaker(
            spec, folder, scheduler, machine, channel, ports, local=local, invented_gpus=invented_gpus
        )
        self._onlooker = onlooker
        self._painter = painter
        self._local = local
        self._began_at = began_at_unix_s
        self._file_deadline_s = file_deadline_s
        self._allocation_ends_s = allocation_ends_s
        self._link = Link(reserve_s(spec)) if spec.experiment.span == "chain" else None
        self._spares = SpareKeeper(
            spec, folder, launcher, server, channel, warm=warm, one_node=one_node_spares, note=self._note
        )
        self._presence = Presence()
        self._suspects = Suspects()
        self._aside = Aside()
        self._timers = Timers()
        self._crews: dict[tuple[int, int], Crew] = {}
        self._pending: deque[_Pending] = deque()
        self._n = first_n
        self._told = told
        self._clerk = Clerk(spec, order_ids)
        self._down: set[str] = set()
        self._unread = Unread(spec.search.space)
        self._diverged = Diverged(
            metric=spec.experiment.metric, policy=str(spec.scheduler.policy.__struct_config__.tag)
        )
        self._num_interrupts = 0
        self._state: ExperimentState | None = None
        self.superseded: str | None = None
        self.why = ""
        """Why it ended."""
        self._filing = Filing(
            folder,
            lambda text: inbox.put(ib.Said(text)),
            still_ours=lambda: newest_life(folder) <= writer.life,
        )
        self._stall = ""

    @property
    def down_nodes(self) -> frozenset[str]:
        """Nodes that are not used now; the keeper tries them."""
        return frozenset(self._down)

    def asides_due(self) -> list[Kept]:
        """Atoms that were set aside and are to be looked at again now. Any thread may ask."""
        return self._aside.due(self._clock.now())

    @property
    def stall(self) -> str:
        """What is wrong while the journal does not become durable, else ""."""
        return self._stall

    def run(self, first: ev.Event) -> ExperimentState:
        """Handle `first` (ExperimentBegan or ExperimentResumed) and go on until the core finishes or suspends."""
        self._handle(first)
        last_round = last_look = time.monotonic()
        while self._state is None and self.superseded is None:
            for item in self._inbox.take(self._wait_s()):
                self._take(item)
            round_at = time.monotonic()
            if round_at - last_round > STOPPED_AFTER_S:
                for crew in self._crews.values():
                    crew.forgive_silence(round_at - last_round)
                self._presence.forgive(round_at - last_round)
            last_round = round_at
            now = self._clock.now()
            for fired in self._timers.due(now):
                self._handle(fired)
            if (
                round_at - last_look >= LOOK_S
            ):  # not each round: a thousand crews cost more than the round itself
                last_look = round_at
                self._look(now)
            if (
                self._link is not None
                and (ending := self._link.ending(now, self._allocation_ends_s, self._scheduler)) is not None
            ):
                self._handle(ending)
            self._watch_disk(now)
            self._onlooker.refresh(now)
            self._painter.refresh()
        return self._state or ExperimentState.SUSPENDED

    def _look(self, now: float) -> None:
        """Crews, nodes and spares: what has become of them while nothing came in."""
        for crew in list(self._crews.values()):
            if (effects := crew.tick(now)) is not None:
                self._effect(crew, effects)
            if crew.settled:
                self._forget(crew)
        self._lose_nodes(now)
        if self._state is None:
            nodes = [name for name in self._nodes if name not in self._down]
            self._spares.keep(nodes, now, somebody_trains=bool(self._crews))

    def _watch_disk(self, now: float) -> None:
        """While the journal stalls, trials train on and decisions wait. The deadline does not wait for a disk.

        To ask somebody to leave for good, or to kill, needs no record: should the driver die before it is written, the
        next life finds a trial that is gone, as after any crash.
        """
        trouble, waits_s = self._writer.trouble, self._writer.waiting_s
        if trouble is None and waits_s < STALL_S:
            if self._stall:
                self._stall = ""
                self._note("the disk takes records again", now)
            return
        if not self._stall:
            self._stall = (
                f"the disk has not answered for {waits_s:.0f} s" if trouble is None else trouble.what
            )
            self._note(f"the journal cannot be written, decisions wait: {self._stall}", now)
        if waits_s < STALL_S:
            return
        for pending in self._pending:
            if not pending.hurried:
                pending.hurried = True
                for action in pending.actions:
                    if isinstance(action, act.KillTrial) or (
                        isinstance(action, act.PreemptTrial) and action.reason is PreemptReason.DEADLINE
                    ):
                        self._perform(action)
        if waits_s > END_STALL_S and self._scheduler.state is not ExperimentState.RUNNING:
            self._state = ExperimentState.SUSPENDED
            self.why = f"{self._scheduler.why_ended}; but the journal cannot be written ({self._stall}), so that it does not say so"

    def wind_up(self) -> None:
        """After the end: whoever still runs is killed, files are put in order, the writer has written all."""
        end = time.monotonic() + END_WAIT_S
        self._spares.end_all()
        for crew in self._crews.values():
            if not crew.closed:
                self._effect(crew, crew.kill(self._clock.now(), "the experiment is over"), handle=False)
        # Of one that is closed and not settled all is said: its nodes are lost, and nobody waits for those.
        while time.monotonic() < end and any(not crew.closed for crew in self._crews.values()):
            for item in self._inbox.take(TICK_S):
                match item:
                    case Arrived() | StepEnded() | StepRefused() | NodesGone() | ib.Ordered() | ib.Said():
                        self._take(item, handle=False)
                    case _:
                        pass
            for crew in self._crews.values():
                if (effects := crew.tick(self._clock.now())) is not None:
                    self._effect(crew, effects, handle=False)
        if self.superseded is not None:
            self._filing.drop()
            return
        limit_s = FILES_LAST_S if self._state is ExperimentState.FINISHED else FILES_S
        done = self._filing.close(limit_s)
        for item in self._inbox.take(0.0):
            if isinstance(item, ib.Said):
                self._take(item)
        if not done:
            cure = (
                f"`best/` may be an older one; `hpcsched run --resume {self._folder.root}` puts it in order"
            )
            self._note(f"not all files were put in order within {limit_s:g} s: {cure}", self._clock.now())

    def redo(self, best: act.PublishBest | None, undone: Undone) -> None:
        """What the last life had decided and may not have done any more; doing it twice changes nothing."""
        if best is not None:
            self._publish(best, self._clock.now())
        for trial_id, incarnation in undone.incarnations():
            self._filing.tidy(self._folder.incarnation(trial_id, incarnation))
        for ref in undone.deletions():
            self._filing.delete(
                self._folder.checkpoint(ref.trial_id, ref.incarnation, ref.training_iteration)
            )

    # ---- in

    def _wait_s(self) -> float:
        at = self._timers.next_at
        if at is None:
            return TICK_S
        return min(TICK_S, max(0.0, at - self._clock.now()))

    def _take(self, item: object, *, handle: bool = True) -> None:
        now = self._clock.now()
        if isinstance(item, Arrived) and (node := getattr(item.message, "node", None)) is not None:
            self._presence.heard(node, max(self._clock.of(item.at), self._last_time))
        match item:
            case ib.Durable(n=n):
                self._perform_until(n)
            case Arrived(message=message) if message.incarnation == 0:
                self._spares.says(item, now)
            case StepEnded(incarnation=0) | StepRefused(incarnation=0) | NodesGone(incarnation=0):
                self._spares.ended(item.trial_id, _reason(item), now)
            case Arrived(message=message, at=at):
                crew = self._crews.get((message.trial_id, message.incarnation))
                if crew is None:
                    self._send_away(item)
                    return
                if isinstance(message, wire.SupervisorHello) and message.step_id:
                    self._launcher.note_step(message.trial_id, message.incarnation, message.step_id)
                if isinstance(message, wire.SupervisorHello | wire.Heartbeat) and message.node in self._down:
                    self._node_back(message.node, now)
                # Never earlier than what was handled before: events come in the order of their times.
                self._effect(crew, crew.heard(message, max(self._clock.of(at), self._last_time)), handle)
            case StepEnded():
                if crew := self._crews.get((item.trial_id, item.incarnation)):
                    effects = crew.step_ended(item.proven_gone_nodes, item.returncode, item.stderr_tail, now)
                    self._effect(crew, effects, handle)
            case StepRefused():
                if crew := self._crews.get((item.trial_id, item.incarnation)):
                    effects = crew.refused(now + item.retry_after_s, item.why, now, item.whose)
                    self._effect(crew, effects, handle)
            case NodesGone():
                if crew := self._crews.get((item.trial_id, item.incarnation)):
                    self._effect(crew, crew.nodes_gone(item.nodes, now), handle)
            case NodeLost(node=node, why=why):
                self._node_lost(node, why, now)
            case ib.NodeBack(node=node):
                self._node_back(node, now)
            case ib.Checked(kept=kept, why=why):
                self._checked(kept, why, now)
            case ib.SignalCaught(name=name):
                self._signal(name, now)
            case ib.AllocationEnds(at_unix_s=at_unix_s):
                self._allocation_ends(at_unix_s, now)
            case ib.AllocationOver(why=why):
                self._handle(ev.ShutdownRequested(time=now, save=False, suspend=True, why=why))
            case ib.Said(text=text):
                self._note(text, now)
            case ib.LeaseLost(why=why):
                self.superseded = why
            case ib.Ordered():
                self._obey(item, max(now, self._last_time))
            case _:
                raise AssertionError(f"unknown input {item!r}")

    def _obey(self, ordered: ib.Ordered, now: float) -> None:
        """A user's order. Refusals need no record; all else is answered once the journal has it."""
        order = ordered.order
        times = Times(
            now, self._began_at, self._file_deadline_s, self._allocation_ends_s, reserve_s(self._spec)
        )
        verdict = self._clerk.look(order, self._scheduler, times)
        if verdict.event is not None:
            if isinstance(verdict.event, ev.TrialSubmitted):
                self._sampler.adopt(verdict.event.trial_id)
            if verdict.file_deadline_s is not None:
                self._file_deadline_s = verdict.file_deadline_s
            self._handle(verdict.event, order_id=order.order_id)
        if self.superseded is not None:
            return
        if verdict.answer.done and self._pending:
            self._pending[-1].answers.append((ordered, verdict.answer))
        else:
            ordered.answer(verdict.answer)

    def _send_away(self, arrived: Arrived) -> None:
        """A peer of an incarnation that this life does not know: it must go."""
        message = arrived.message
        match message:
            case wire.SupervisorHello() | wire.Heartbeat():
                kill = wire.KillRanks(message.trial_id, message.incarnation, "unknown to this driver")
                self._server.send(arrived.peer, kill)
            case _:
                pass

    @property
    def _last_time(self) -> float:
        return self._handled_until

    _handled_until: float = 0.0

    def _handle(
        self,
        event: ev.Event,
        reply: tuple[Crew, int] | None = None,
        order_id: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        if self._state is not None:
            return
        self._handled_until = max(self._handled_until, event.time)
        actions = self._scheduler.handle(event)
        self._n += 1
        step = Step(n=self._n, event=event, actions=tuple(actions), order_id=order_id)
        try:
            record = self._writer.append(step)
        except SupersededError as error:
            self.superseded = str(error)
            return
        self._pending.append(_Pending(record, actions, reply, []))
        self._onlooker.step(event, actions)
        self._painter.take(step)
        self._tell_sampler(event)

    def _effect(self, crew: Crew, effects: Effects, handle: bool = True) -> None:
        now = self._clock.now()
        for note in effects.notes:
            self._note(note, now)
        for text in effects.trial_notes:
            self._note_of(crew, "checkpoint", now, text)
            self._onlooker.note(now, f"trial {crew.trial_id}: {text}")
        for warning in filter(None, [*effects.warnings, self._unread.warning(effects.unread)]):
            self._note_of(crew, "warning", now, warning)
            self._onlooker.note(now, f"trial {crew.trial_id}: {warning}")
        if effects.picked is not None:
            hello = effects.picked
            facts = {"node": hello.node, "devices": hello.devices, "uuids": hello.uuids, "cores": hello.cores}
            self._note_of(crew, "devices", now, picked_text(hello), facts)
        if effects.stall is not None:
            stall = effects.stall
            self._note_of(crew, "stall", now, stall.text, msgspec.to_builtins(stall))
            self._onlooker.note(now, f"trial {crew.trial_id}: {stall.text}")
        if effects.extra is not None and (len(effects.extra) > 1 or effects.measures):
            data: dict[str, Any] = {"training_iteration": crew.last_iteration, "metrics": effects.extra}
            if effects.measures:
                data["measures"] = effects.measures
            self._note_of(crew, "metrics", now, data=data)
        if effects.restart is not None:
            text = restart_text(effects.restart)
            self._note_of(crew, "setup", now, text, dict(effects.restart))
            if "step_s" in effects.restart:
                self._onlooker.note(now, f"trial {crew.trial_id} incarnation {crew.incarnation} is {text}")
        for peer, message in effects.sends:
            self._server.send(peer, message)
        if effects.kill_steps:
            self._launcher.kill(crew.trial_id, crew.incarnation)
        if handle:
            for event in effects.events:
                seq = effects.reply_to if isinstance(event, ev.ResultReported) else None
                if isinstance(event, ev.TrialExited):
                    self._exited(crew, event, now)
                    continue
                if isinstance(event, ev.ResultReported):
                    self._suspects.reported([node.node for node in crew.spec.nodes])
                    if warning := self._diverged.warning(event):
                        self._note_of(crew, "warning", now, warning)
                        self._onlooker.note(now, f"trial {crew.trial_id}: {warning}")
                self._handle(event, None if seq is None else (crew, seq))
            if effects.aside:
                self._keep_aside(effects.aside, now)
        if effects.events:
            self._watch_nodes(crew, now, handle)

    def _exited(self, crew: Crew, event: ev.TrialExited, now: float) -> None:
        """The end of an incarnation is the node's or the trial's; a node on which one trial after another dies is set aside."""
        nodes = {node.node for node in crew.spec.nodes}
        others_live = any(
            not other.closed and nodes.isdisjoint(node.node for node in other.spec.nodes)
            for other in self._crews.values()
        )
        verdict = self._suspects.ended(
            crew.trial_id,
            sorted(nodes),
            event.outcome if crew.accuses_nodes else Outcome.KILLED,
            has_reported=crew.has_reported,
            others_live=others_live,
        )
        if verdict.to_blame:
            why = f"{event.outcome}, but one trial after another dies on {verdict.to_blame}: {event.why}"
            event = msgspec.structs.replace(event, outcome=Outcome.NODE_FAILED, why=why)
        self._handle(event)
        for node in verdict.set_aside:
            self._set_aside(node, f"{NUM_TRIALS} trials in a row have died on it while others work", now)

    def _set_aside(self, node: str, why: str, now: float) -> None:
        atoms = tuple(atom.atom_id for atom in self._machine.atoms if atom.node == node)
        if not set(self._nodes) - self._suspects.set_aside - self._down:
            self._note(f"{node}: {why}; but no other node is left", now)
            return
        self._note(f"{node} is not used any more: {why}", now)
        self._handle(ev.MachineChanged(time=now, down=atoms, why=f"{node}: {why}"))

    def _keep_aside(self, atoms: tuple[AtomId, ...], now: float) -> None:
        """The core has been told; whether they can come back is looked at later (`asides_due`)."""
        (node,) = self._specs.nodes_of(Placement(atoms))
        next_at = self._aside.put(node, atoms, now)
        name = f"{node.node} GPU {','.join(node.gpus)}"
        self._note(f"{name} is set aside; {_again(next_at, now)}", now)

    def _checked(self, kept: Kept, why: str | None, now: float) -> None:
        if not self._aside.knows(kept):
            return
        next_at = self._aside.checked(kept, fine=why is None, now=now)
        if why is not None:
            self._note(f"{kept.name} stays aside: {why}; {_again(next_at, now)}", now)
        elif kept.node.node not in self._suspects.set_aside:
            text = f"{kept.name}: looked at again and found free and whole"
            self._note(f"{text}; it is used again", now)
            self._handle(ev.MachineChanged(time=now, up=kept.atoms, why=text))

    def _watch_nodes(self, crew: Crew, now: float, handle: bool) -> None:
        """A node of which nothing is heard any more, trials and spares alike, is not used until it is heard of again."""
        if not handle or not crew.closed or self._local:
            return
        for name in crew.silent_nodes:
            if name not in self._down:
                self._presence.missed(name, now)
        self._lose_nodes(now)

    def _lose_nodes(self, now: float) -> None:
        for name in self._presence.lost(now):
            self._node_lost(name, "nothing is heard from it", now)

    def _node_lost(self, node: str, why: str, now: float) -> None:
        if node in self._nodes and node not in self._down:
            self._down.add(node)
            self._handle(ev.NodeDown(time=now, node=node, why=why))
            if self._suspects.lost(node):
                self._set_aside(node, f"it was lost {NUM_LOSSES} times", now)

    def _node_back(self, node: str, now: float) -> None:
        if node in self._down:
            self._down.discard(node)
            self._handle(ev.NodeUp(time=now, node=node))

    def _signal(self, name: str, now: float) -> None:
        if name == "SIGINT":
            self._num_interrupts += 1
            save = self._num_interrupts == 1
            why = "Ctrl-C" if save else "Ctrl-C twice"
            self._note(f"{why}: {'saving everything' if save else 'ending now'}", now)
            self._handle(ev.ShutdownRequested(time=now, save=save, suspend=True, why=why))
        elif name in ("SIGUSR1", "SIGUSR2"):
            chain = self._spec.experiment.span == "chain"
            self._handle(ev.ShutdownRequested(time=now, save=True, suspend=chain, why=f"warning by {name}"))
        else:
            self._handle(ev.ShutdownRequested(time=now, save=False, suspend=True, why=name))

    def _allocation_ends(self, at_unix_s: float | None, now: float) -> None:
        ends_s = None if at_unix_s is None else at_unix_s - time.time() + now
        before = self._allocation_ends_s
        if (ends_s is None) == (before is None) and (before is None or abs(ends_s - before) < 2.0):  # type: ignore[operator]  # both are floats here
            return
        self._allocation_ends_s = ends_s
        if self._link is None:
            self._deadline_changed("the allocation's end has changed", now)
        else:
            left = "no limit" if ends_s is None else format_duration(max(0, round(ends_s - now)))
            self._note(f"the allocation's end has changed; time left: {left}", now)

    def _deadline_changed(self, why: str, now: float) -> None:
        new = limits(
            file_deadline_s=self._file_deadline_s,
            allocation_ends_s=self._allocation_ends_s,
            reserve_s=reserve_s(self._spec),
            chain=self._spec.experiment.span == "chain",
        )
        self._handle(ev.DeadlineChanged(time=now, deadline_s=new.deadline_s, why=f"{why}: {new.why}"))

    # ---- out

    def _perform_until(self, n: int) -> None:
        while self._pending and self._pending[0].record <= n:
            pending = self._pending.popleft()
            for action in pending.actions:
                self._perform(action)
            if pending.reply is not None:
                crew, seq = pending.reply
                reply = wire.Reply(crew.trial_id, crew.incarnation, seq, crew.leave_reason)
                self._server.send(crew.rank_peer, reply)
            for ordered, answer in pending.answers:
                ordered.answer(answer)

    def _perform(self, action: act.Action) -> None:
        now = self._clock.now()
        match action:
            case act.RequestTrial(num=num):
                self._ask(num)
            case act.StartTrial():
                self._start(action, now)
            case act.PreemptTrial(reason=reason):
                if crew := self._crews.get((action.trial_id, action.incarnation)):
                    self._effect(crew, crew.preempt(reason, now))
            case act.KillTrial():
                if crew := self._crews.get((action.trial_id, action.incarnation)):
                    self._effect(crew, crew.kill(now, action.because))
            case act.SetTimer():
                self._timers.set(action)
            case act.PublishBest():
                self._publish(action, now)
            case act.DeleteCheckpoint(checkpoint=ref):
                self._filing.delete(
                    self._folder.checkpoint(ref.trial_id, ref.incarnation, ref.training_iteration)
                )
            case act.SuspendExperiment():
                self._state = ExperimentState.SUSPENDED
                self.why = action.because
            case act.FinishExperiment(state=state):
                self._state = state
                self.why = action.because

    def _ask(self, num: int) -> None:
        for _ in range(num):
            trial_id = TrialId(len(self._scheduler.trials))
            config = self._sampler.ask(trial_id)
            now = max(self._clock.now(), self._last_time)
            if config is None:
                self._handle(ev.SearchExhausted(time=now))
                return
            self._handle(ev.TrialSubmitted(time=now, trial_id=trial_id, config=config))

    def _tell_sampler(self, event: ev.Event) -> None:
        tell_sampler(self._sampler, self._scheduler, event, self._told)

    def _start(self, action: act.StartTrial, now: float) -> None:
        nodes = {self._machine.atoms[atom].node for atom in action.placement.atoms}
        if (known_at := self._presence.doubtful_until(nodes)) is not None:
            why = "nothing is heard from a node of its placement"
            self._refuse(action, now, why, again_s=max(0.0, known_at - now) + 2 * LOOK_S)
            return
        try:
            spec = self._specs.make(action)
        except LaunchError as error:
            self._refuse(action, now, str(error))
            return
        try:
            write_private(
                self._folder.launch_file(action.trial_id, action.incarnation), msgspec.json.encode(spec)
            )
        except OSError as error:
            self._specs.give_back(spec)
            self._refuse(action, now, f"the run folder cannot be written: {error}")
            return
        atoms = action.placement.atoms
        spares = self._spares.give(spec, now)
        crew = Crew(spec, lambda node: self._atoms_on(node, atoms), started_at=now, warm=spares is not None)
        self._crews[(action.trial_id, action.incarnation)] = crew
        if spares is None:
            self._launcher.start(spec)
        else:
            self._launcher.adopt(spec, spares)

    def _refuse(self, action: act.StartTrial, now: float, why: str, again_s: float = REFUSED_AGAIN_S) -> None:
        """Nothing of it was started; the core tries again."""
        self._handle(
            ev.LaunchRefused(
                time=now,
                trial_id=action.trial_id,
                incarnation=action.incarnation,
                retry_at=now + again_s,
                why=why,
            )
        )

    def _atoms_on(self, node: str, atoms: tuple[AtomId, ...]) -> tuple[AtomId, ...]:
        return tuple(atom for atom in atoms if self._machine.atoms[atom].node == node)

    def _publish(self, action: act.PublishBest, now: float) -> None:
        ref = action.checkpoint
        source = self._folder.checkpoint(ref.trial_id, ref.incarnation, ref.training_iteration)
        facts = {
            "trial_id": ref.trial_id,
            "incarnation": ref.incarnation,
            "training_iteration": ref.training_iteration,
            "metric_name": self._spec.experiment.metric,
            "metric": action.metric,
            "config": self._scheduler.trials[ref.trial_id].config,
            "saved_s": round(now, 3),
        }
        self._filing.publish(source, facts)

    def _forget(self, crew: Crew) -> None:
        self._filing.tidy(self._folder.incarnation(crew.trial_id, crew.incarnation))
        del self._crews[(crew.trial_id, crew.incarnation)]
        self._launcher.forget(crew.trial_id, crew.incarnation)
        self._specs.give_back(crew.spec)
        self._server.forget(crew.rank_peer)
        for node in crew.spec.nodes:
            self._server.forget(supervisor_peer(crew.trial_id, crew.incarnation, node.node))

    def _note(self, text: str, now: float) -> None:
        self._append_note(Note(time=now, topic="driver", text=text))
        self._onlooker.note(now, text)

    def _note_of(
        self, crew: Crew, topic: str, now: float, text: str = "", data: dict[str, Any] | None = None
    ) -> None:
        """Into the log, of this incarnation."""
        self._append_note(
            Note(
                time=now,
                topic=topic,
                text=text,
                trial_id=crew.trial_id,
                incarnation=crew.incarnation,
                data=data or {},
            )
        )

    def _append_note(self, note: Note) -> None:
        try:
            self._writer.append(note)
        except SupersededError as error:
            self.superseded = str(error)
            return
        self._painter.take(note)


def _again(next_at: float | None, now: float) -> str:
    if next_at is None:
        return f"it has been looked at {NUM_CHECKS} times and stays aside until the driver is started again"
    return f"it is looked at again in {next_at - now:.0f} s"


def _reason(notice: StepEnded | StepRefused | NodesGone) -> str:
    match notice:
        case StepEnded(returncode=code, stderr_tail=tail):
            return f"exit code {code}: {tail.strip()[-300:]}"
        case StepRefused(why=why):
            return why
        case NodesGone():
            return "its node says nothing runs there"
