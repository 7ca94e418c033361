"""The supervisors and rank 0 of one incarnation, as the driver knows them. Pure: no sockets, no clock.

Theory. An incarnation is alive from StartTrial until one `TrialExited` (or `LaunchRefused`) has been given to the
core. What ends it can arrive in any order and from several sides: rank 0's goodbye, exits told by supervisors, a
supervisor's goodbye, the end of an srun, silence. So the crew collects facts and closes when *every node is
settled*: its supervisor said goodbye (all ranks proven gone), or the launcher proved the step gone, or the node is
silent and the others are settled. Whatever is heard first of a failure makes the crew end everybody at once: the
survivors sit in a collective and would wait for ever. The first cause names the outcome.

Inputs are methods; each returns the effects: core events, messages to send, whether the launcher shall kill.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from hpcsched import wire
from hpcsched.core import events as ev
from hpcsched.core.actions import CheckpointRef
from hpcsched.core.enums import Outcome
from hpcsched.core.ids import Incarnation, TrialId
from hpcsched.driver.stalls import Stall, Stalls
from hpcsched.launch.launcher import WhoseFault
from hpcsched.launchspec import LaunchSpec
from hpcsched.topology.machine import AtomId

SILENT_AFTER_S = 4.0
"""A supervisor not heard of for so long is lost (heartbeats come each second). With 5 s a killed node's trials trained elsewhere
after 9.1 s in the median on the test cluster of two busy cores, and 8 s is what is promised."""
ESCALATE_AFTER_S = 2.0
"""From telling supervisors to kill until the launcher kills the steps."""
LINGERS_AFTER_S = 15.0
"""Ranks that run for so long after rank 0's goodbye are spoken of: somebody waits for their atoms."""
SETTLE_LIMIT_S = 10.0
"""Longest wait for the other nodes after a node was lost; then theirs count as unproven, too."""


def _lingers(ranks: Sequence[int]) -> str:
    who = (
        f"rank {ranks[0]} still runs" if len(ranks) == 1 else f"{len(ranks)} ranks still run"
    ) + f" {LINGERS_AFTER_S:.0f} s"
    return (
        f"{who} after the loop has ended and all is saved: the script works on, or waits for a thread (that is no daemon) or a "
        "process that it has started. Its atoms are held until then"
    )


def rank_peer(trial_id: int, incarnation: int) -> str:
    return f"{trial_id}.{incarnation}.rank0"


def supervisor_peer(trial_id: int, incarnation: int, node: str) -> str:
    return f"{trial_id}.{incarnation}.sup.{node}"


class Effects(msgspec.Struct):
    """What has to be done after an input."""

    events: list[ev.Event] = msgspec.field(default_factory=list)
    sends: list[tuple[str, wire.FromDriver]] = msgspec.field(default_factory=list)
    kill_steps: bool = False
    """The launcher shall end what is left of this incarnation."""
    reply_to: int | None = None
    """A Report with this `seq` waits for its Reply until the core has judged it and the log is durable."""
    notes: list[str] = msgspec.field(default_factory=list)
    """Facts for the log that are no events."""
    trial_notes: list[str] = msgspec.field(default_factory=list)
    """The same, of this trial: `hpcsched explain` tells them."""
    warnings: list[str] = msgspec.field(default_factory=list)
    """Of this trial, about its script."""
    extra: dict[str, float | None] | None = None
    """All metrics of a report, for the log."""
    aside: tuple[AtomId, ...] = ()
    """Atoms of one node that `events` sets aside, to be looked at again: the supervisor there found something else than was promised, or
    a GPU has failed."""
    measures: dict[str, float] = msgspec.field(default_factory=dict)
    """What the report's iteration spent its time on, for the log."""
    unread: tuple[str, ...] = ()
    """Hyperparameters that the script has not looked at by its first report."""
    picked: wire.SupervisorHello | None = None
    """A node's devices are of Slurm's choice, not those of the placement (see `picked_text`)."""
    stall: Stall | None = None
    """A rank holds up the others, or does not any more."""
    restart: dict[str, float] | None = None
    """Parts of what a restart costs, in seconds, as they become known (see `restart_text`)."""


def restart_text(parts: Mapping[str, float]) -> str:
    """For people: "up: step 0.120 s, imports 2.310 s, ..."; names end in _s."""
    what = "left" if "leave_s" in parts else "first iteration" if "first_iteration_s" in parts else "up"
    return f"{what}: " + ", ".join(
        f"{name.removesuffix('_s')} {value:.3f} s" for name, value in parts.items()
    )


def picked_text(hello: wire.SupervisorHello) -> str:
    """ "on n1 Slurm gave GPU 0,1 (GPU-8a..., GPU-91...)". Numbers are the step's, as its ranks see them."""
    uuids = f" ({', '.join(hello.uuids)})" if hello.uuids else ""
    return f"on {hello.node} Slurm gave GPU {','.join(hello.devices)}{uuids}"


class NodeState(enum.Enum):
    EXPECTED = "expected"
    """Launched, not heard of yet."""
    PRESENT = "present"
    SILENT = "silent"
    GONE = "gone"
    """Proven: nothing of this incarnation runs there."""


class _Node(msgspec.Struct):
    name: str
    ranks: range
    atoms: tuple[AtomId, ...]
    state: NodeState = NodeState.EXPECTED
    heard_at: float = 0.0
    exits: dict[int, int] = msgspec.field(default_factory=dict)
    uuids: frozenset[str] = frozenset()
    """Of its devices, where they are known."""
    picked: bool = False
    """Slurm chose its devices: they are not those of the placement."""

    def atoms_with(self, gpus: Collection[str], all_gpus: Sequence[str]) -> tuple[AtomId, ...]:
        """The atoms that hold these of the incarnation's GPUs here; all of them for none. GPUs stand in the atoms' order."""
        per_atom = max(1, len(all_gpus) // max(1, len(self.atoms)))
        atoms = sorted(self.atoms)
        chosen = {all_gpus.index(gpu) // per_atom for gpu in gpus if gpu in all_gpus}
        return tuple(atoms[i] for i in sorted(chosen) if i < len(atoms)) or self.atoms


class Crew:
    """Facts about one incarnation; `closed` once its end has been told to the core."""

    def __init__(
        self,
        spec: LaunchSpec,
        atoms_of_node: Callable[[str], tuple[AtomId, ...]],
        *,
        started_at: float,
        warm: bool = False,
    ) -> None:
        """`warm`: spares have been told to take it; should one of them be lost, it is to start again, cold."""
        self._warm = warm
        self.spec = spec
        self.trial_id = TrialId(spec.trial_id)
        self.incarnation = Incarnation(spec.incarnation)
        self.started_at = started_at
        self.closed = False
        self.leave_reason: str | None = None
        self.rank_present = False
        self.last_iteration = spec.restore_iteration
        self._num_reports = 0
        self._last_seq = 0
        self._reported_metric = False
        self._nodes = {
            node.node: _Node(
                name=node.node,
                ranks=range(node.first_rank, node.first_rank + len(node.gpus)),
                atoms=atoms_of_node(node.node),
                heard_at=started_at,
            )
            for node in spec.nodes
        }
        self._outcome: Outcome | None = None
        self._why = ""
        self._refused: tuple[float, str] | None = None
        self._leaving: wire.Leaving | None = None
        self._left_at = math.inf
        """When rank 0 said goodbye."""
        self._ended_at: float | None = None
        self._escalated = False
        self._last_hello_at = started_at
        """Of the supervisors: by then the step stands on every node."""
        self._leave_told_at: float | None = None
        self._last_save_s = 0.0
        self._stalls = Stalls(spec.world_size)
        self.accuses_nodes = True
        """An end of failure may be a node's; not where Slurm refuses the like on every node."""

    # ---- what the core wants

    def preempt(self, reason: str, now: float | None = None) -> Effects:
        """PreemptTrial: told at once where rank 0 is known, else at first contact."""
        effects = Effects()
        self._leave_told_at = now
        self.leave_reason = reason
        if self.rank_present and not self.closed:
            effects.sends.append((self.rank_peer, wire.LeaveOrder(self.trial_id, self.incarnation, reason)))
        return effects

    def kill(self, now: float, why: str) -> Effects:
        """KillTrial."""
        return self._end(now, Outcome.KILLED, why)

    # ---- what supervisors and rank 0 say

    @property
    def rank_peer(self) -> str:
        return rank_peer(self.trial_id, self.incarnation)

    def heard(self, message: wire.ToDriver, now: float) -> Effects:
        """Any message of this incarnation."""
        if self.closed:
            return self._heard_after_the_end(message, now)
        match message:
            case wire.SupervisorHello(node=name, uuids=uuids):
                effects = self._hello(name, now)
                if message.picked and message.devices and name in self._nodes:
                    self._nodes[name].picked = True
                    effects.picked = message
                self._merge(effects, self._see_devices(name, uuids, now))
                return effects
            case wire.Heartbeat(node=name):
                return self._heartbeat(name, now)
            case wire.RanksStarted(node=name) | wire.RankExited(node=name) | wire.RankProgress(node=name) if (
                name not in self._nodes
            ):
                return Effects()
            case wire.RankProgress(ranks=ranks):
                if self._leaving is not None or self._outcome is not None:
                    return Effects()  # who is done waits for nobody
                return Effects(stall=self._stalls.heard(ranks, now))
            case wire.RanksStarted(node=name):
                self._nodes[name].heard_at = now
                return Effects()
            case wire.RankExited():
                return self._rank_exited(message, now)
            case wire.SupervisorGoodbye(node=name, exits=exits):
                return self._goodbye(name, exits, now)
            case wire.SupervisorRefuses():
                return self._refuses(message, now)
            case wire.RankHello():
                return self._rank_hello(message, now)
            case wire.Report() if self._leaving is not None:
                return Effects(notes=[f"{self.rank_peer} reported after its goodbye; that does not count"])
            case wire.Report():
                return self._report(message, now)
            case wire.SavedCheckpoint():
                self._last_save_s = message.save_s
                return Effects(
                    events=[
                        ev.CheckpointSaved(
                            time=now,
                            trial_id=self.trial_id,
                            incarnation=self.incarnation,
                            training_iteration=message.training_iteration,
                            save_time_s=message.save_s,
                            num_bytes=message.num_bytes,
                            blocked_s=message.blocked_s,
                        )
                    ]
                )
            case wire.CheckpointTrouble():
                return Effects(
                    events=[
                        ev.CheckpointFailed(
                            time=now,
                            trial_id=self.trial_id,
                            incarnation=self.incarnation,
                            training_iteration=message.training_iteration,
                            why=message.why,
                        )
                    ]
                )
            case wire.Leaving():
                self._leaving = message
                self._left_at = math.inf if message.how == "failed" else now
                if message.how == "failed" and self._outcome is None:
                    self._why = message.why
                if self._leave_told_at is None or message.how != "preempted":
                    return Effects()
                leave_s = max(0.0, now - self._leave_told_at - self._last_save_s)
                return Effects(restart={"leave_s": leave_s, "save_s": self._last_save_s})
            case _:
                return Effects()

    def _heard_after_the_end(self, message: wire.ToDriver, now: float) -> Effects:
        """A node that was silent is back: its ranks must go."""
        match message:
            case wire.SupervisorHello(node=name) | wire.Heartbeat(node=name):
                return Effects(
                    sends=[
                        (
                            supervisor_peer(self.trial_id, self.incarnation, name),
                            wire.KillRanks(self.trial_id, self.incarnation, "this incarnation is over"),
                        )
                    ]
                )
            case wire.SupervisorGoodbye(node=name):
                return self._returned(name, now)
            case wire.Report(seq=seq):
                return Effects(
                    sends=[(self.rank_peer, wire.Reply(self.trial_id, self.incarnation, seq, "stop"))]
                )
            case _:
                return Effects()

    def _hello(self, name: str, now: float) -> Effects:
        node = self._nodes.get(name)
        if node is None:
            return Effects(notes=[f"supervisor of a node that is not in the placement: {name}"])
        if node.state is NodeState.EXPECTED:
            self._last_hello_at = now
        if node.state in (NodeState.EXPECTED, NodeState.SILENT):
            node.state = NodeState.PRESENT
        node.heard_at = now
        peer = supervisor_peer(self.trial_id, self.incarnation, name)
        if self._outcome is not None or self._refused is not None:
            return Effects(sends=[(peer, wire.KillRanks(self.trial_id, self.incarnation, self._why))])
        return Effects(sends=[(peer, wire.SupervisorWelcome(self.trial_id, self.incarnation))])

    def _see_devices(self, name: str, uuids: tuple[str, ...], now: float) -> Effects:
        """No two nodes of a trial may name the same device: two ranks would share it."""
        effects = Effects()
        node = self._nodes.get(name)
        if node is None:
            return effects
        node.uuids = frozenset(uuids)
        for other in self._nodes.values():
            shared = sorted(node.uuids & other.uuids)
            if other is node or not shared or self._outcome is not None or self._refused is not None:
                continue
            why = f"{other.name} and {name} both name the device {', '.join(shared)}: ranks of trial {self.trial_id} would share it"
            effects.notes.append(why)
            self._tell_end(effects, now, Outcome.LAUNCH_FAILED, why)
            effects.events.append(ev.MachineChanged(time=now, down=node.atoms, why=why))
        return effects

    def _heartbeat(self, name: str, now: float) -> Effects:
        return self._hello(name, now) if name in self._nodes else Effects()

    def _rank_hello(self, message: wire.RankHello, now: float) -> Effects:
        effects = Effects()
        if not self.rank_present:
            self.rank_present = True
            effects.events += self._lost(effects, message, now)
            effects.events.append(
                ev.TrialStarted(
                    time=now,
                    trial_id=self.trial_id,
                    incarnation=self.incarnation,
                    setup_time_s=now - self.started_at,
                    warm=self._warm,
                    state_bytes=max(0, message.state_bytes),
                )
            )
            # Imports count from the process's begin, which a spare's rank shares with nobody; what is not told is the way
            # of messages and the making of the model.
            effects.restart = {"step_s": self._last_hello_at - self.started_at} | {
                f"{name}_s": value for name, value in message.setup_s.items()
            }
        if self.leave_reason is not None:
            effects.sends.append(
                (self.rank_peer, wire.LeaveOrder(self.trial_id, self.incarnation, self.leave_reason))
            )
        return effects

    def _lost(self, effects: Effects, message: wire.RankHello, now: float) -> list[ev.Event]:
        """Checkpoints that it could not go on from. One is lost when its copy in `best/` is, too."""
        if not message.lost:
            return []
        self.last_iteration = message.restored_iteration
        why = dict(message.lost)
        copies: dict[tuple[int, int], list[str]] = {}
        for point in self.spec.restore_points:
            copies.setdefault((point.incarnation, point.training_iteration), []).append(point.path)
        events: list[ev.Event] = []
        for (incarnation, iteration), paths in copies.items():
            lost = [path for path in paths if path in why]
            if len(lost) < len(paths):
                effects.trial_notes += [f"a copy of a checkpoint is not used: {why[path]}" for path in lost]
                continue
            ref = CheckpointRef(self.trial_id, Incarnation(incarnation), iteration)
            events.append(
                ev.CheckpointLost(
                    time=now,
                    trial_id=self.trial_id,
                    incarnation=self.incarnation,
                    checkpoint=ref,
                    why="; ".join(why[path] for path in paths),
                )
            )
        done = message.restored_iteration
        effects.trial_notes.append(f"goes on from iteration {done}" if done else "starts from scratch")
        return events

    def _report(self, message: wire.Report, now: float) -> Effects:
        if message.seq <= self._last_seq:  # sent again after a reconnect: already judged
            reply = wire.Reply(self.trial_id, self.incarnation, message.seq, self.leave_reason)
            return Effects(sends=[(self.rank_peer, reply)])
        self._last_seq = message.seq
        self._num_reports += 1
        self.last_iteration = max(self.last_iteration, message.training_iteration)
        metric, problem = self._metric(message)
        notes = []
        if problem == "missing" and self._num_reports == 1:
            names = ", ".join(sorted(message.metrics)[:20]) or "nothing"
            notes.append(f'trial {self.trial_id} reports {names}; experiment.metric is "{self.spec.metric}"')
        return Effects(
            notes=notes,
            events=[
                ev.ResultReported(
                    time=now,
                    trial_id=self.trial_id,
                    incarnation=self.incarnation,
                    training_iteration=message.training_iteration,
                    metric=metric,
                    time_this_iter_s=message.time_this_iter_s,
                    problem=problem,
                )
            ],
            reply_to=message.seq,
            extra=message.metrics,
            measures=message.extra,
            unread=message.unread,
            restart={"first_iteration_s": message.time_this_iter_s} if self._num_reports == 1 else None,
        )

    def _metric(self, message: wire.Report) -> tuple[float | None, str | None]:
        if self.spec.metric not in message.metrics:
            return None, "missing"
        value = message.metrics[self.spec.metric]
        if value is None:
            return None, message.problems.get(self.spec.metric, "nan")
        if not math.isfinite(value):
            return None, "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return value, None

    def _rank_exited(self, message: wire.RankExited, now: float) -> Effects:
        node = self._nodes[message.node]
        node.heard_at = now
        node.exits[message.rank] = message.code
        if message.code == 0:
            return Effects()
        if self._goodbye_stands:
            # All is saved and said: what breaks while groups are torn down is no failure of the trial.
            return Effects(notes=[f"rank {message.rank} ended with code {message.code} after its goodbye"])
        if message.gpu_failure:
            return self._gpu_failed(node, message, now)
        outcome = Outcome.OUT_OF_MEMORY if message.out_of_memory else Outcome.CRASHED
        how = f"signal {-message.code}" if message.code < 0 else f"code {message.code}"
        why = f"rank {message.rank} on {message.node} ended with {how}"
        if message.tail:
            why += f"; end of its log:\n{message.tail}"
        return self._end(now, outcome, why)

    def _gpu_failed(self, node: _Node, message: wire.RankExited, now: float) -> Effects:
        """No fault of the trial, also where a rank that only waited for it has ended before. The atom is looked at again later, as one on
        which a launch found something wrong; a device that Slurm chose belongs to none."""
        effects = Effects()
        if self._outcome in (None, Outcome.CRASHED) and self._refused is None:
            gpus = next(each.gpus for each in self.spec.nodes if each.node == node.name)
            gpu = gpus[message.rank - node.ranks.start] if message.rank in node.ranks else ""
            which = "a GPU" if node.picked or not gpu else f"GPU {gpu}"
            what = f"{which} of {node.name} has failed under rank {message.rank} ({message.gpu_failure})"
            why = f"{what}; end of its log:\n{message.tail}" if message.tail else what
            self._tell_end(effects, now, Outcome.NODE_FAILED, why)
            self._outcome, self._why = Outcome.NODE_FAILED, why
            if gpu and not node.picked:
                effects.aside = node.atoms_with((gpu,), gpus)
                effects.events.append(ev.MachineChanged(time=now, down=effects.aside, why=what))
        return self._settle(effects, now)

    @property
    def _goodbye_stands(self) -> bool:
        """Rank 0 has said that all is done. Who left the loop unasked and then ended with a code of failure meant another thing:
        `sys.exit(1)` where the script handles its own errors."""
        if self._leaving is None or self._leaving.how == "failed":
            return False
        codes = [code for node in self._nodes.values() for code in node.exits.values()]
        return not (self._leaving.early and any(code > 0 for code in codes))

    def _goodbye(self, name: str, exits: dict[int, int], now: float) -> Effects:
        node = self._nodes.get(name)
        if node is None:
            return Effects()
        node.exits.update(exits)
        node.state = NodeState.GONE
        failed = any(code != 0 for code in exits.values()) and not self._goodbye_stands
        if failed and self._outcome is None and self._refused is None:
            effects = self._end(now, Outcome.CRASHED, f"ranks on {name} ended with codes {exits}")
        else:
            effects = Effects()
        return self._settle(effects, now)

    def _refuses(self, message: wire.SupervisorRefuses, now: float) -> Effects:
        node = self._nodes.get(message.node)
        if node is None:
            return Effects()
        node.state = NodeState.GONE
        effects = Effects(notes=[f"{message.node} refuses trial {self.trial_id}: {message.why}"])
        if message.problem == "port":
            self._refuse(now, now, f"port {self.spec.master_port} is in use on {message.node}")
            self._tell_all_to_kill(effects)
        elif self._outcome is None and self._refused is None:
            self._tell_end(effects, now, Outcome.LAUNCH_FAILED, message.why)
            if message.problem == "mismatch":
                gpus = next(each.gpus for each in self.spec.nodes if each.node == message.node)
                down = node.atoms_with(message.gpus, gpus)
                effects.aside = down
                effects.events.append(ev.MachineChanged(time=now, down=down, why=message.why))
        return self._settle(effects, now)

    # ---- what the launcher says

    def step_ended(
        self, gone_nodes: Sequence[str], returncode: int | None, stderr_tail: str, now: float
    ) -> Effects:
        """An srun (or local supervisor) has ended, and nothing of it runs on `gone_nodes`."""
        effects = Effects()
        if self.closed:
            for name in gone_nodes:
                self._merge(effects, self._returned(name, now))
            return effects
        unannounced = [
            name
            for name in gone_nodes
            if name in self._nodes and self._nodes[name].state is not NodeState.GONE
        ]
        for name in unannounced:
            was = self._nodes[name].state
            self._nodes[name].state = NodeState.GONE
            if self._outcome is None and self._refused is None:
                if was is NodeState.EXPECTED and self._warm:
                    self._refuse(now, now, f"the spare on {name} was lost; it starts cold")
                    self._tell_all_to_kill(effects)
                    continue
                if was is NodeState.EXPECTED:
                    outcome, what = Outcome.LAUNCH_FAILED, "the step ended before its supervisor said hello"
                elif "node failure" in stderr_tail.lower():
                    outcome, what = Outcome.NODE_FAILED, "the node failed"
                else:
                    outcome, what = Outcome.NODE_FAILED, "the supervisor ended without a goodbye"
                why = f"{what} on {name} (exit code {returncode}): {stderr_tail.strip()[-500:]}"
                self._tell_end(effects, now, outcome, why)
        return self._settle(effects, now)

    def refused(self, retry_at: float, why: str, now: float, whose: WhoseFault = "slurm") -> Effects:
        """The launch was refused and nothing of it runs, or the part that runs has to go. It is tried again at `retry_at`, and nobody
        blamed, when it is Slurm's fault; else it has failed."""
        effects = Effects()
        if self.closed or self._outcome is not None:
            return effects
        if whose == "slurm":
            self._refuse(now, retry_at, why)
            self._tell_all_to_kill(effects)
        else:
            self.accuses_nodes = whose != "site"
            self._tell_end(effects, now, Outcome.LAUNCH_FAILED, why)
        for node in self._nodes.values():
            if node.state is NodeState.EXPECTED:
                node.state = NodeState.GONE
        return self._settle(effects, now)

    def nodes_gone(self, names: Sequence[str], now: float) -> Effects:
        """Proof that nothing of this incarnation runs on these nodes."""
        return self.step_ended(names, None, "", now)

    # ---- time

    def tick(self, now: float) -> Effects | None:
        """Silence and limits; None: nothing is to be done, as nearly always. Call some times a second."""
        if self.closed or self._is_well(now):
            return None
        effects = Effects()
        for node in self._nodes.values():
            if node.state is NodeState.PRESENT and now - node.heard_at > SILENT_AFTER_S:
                node.state = NodeState.SILENT
                why = f"no word from the supervisor on {node.name} for {now - node.heard_at:.1f} s"
                effects.notes.append(why)
                if self._outcome is None and self._refused is None:
                    self._tell_end(effects, now, Outcome.NODE_FAILED, why)
                effects.kill_steps = True
        if self._outcome is None and self._refused is None and now - self._left_at > LINGERS_AFTER_S:
            self._left_at = math.inf  # said once
            present = [node for node in self._nodes.values() if node.state is NodeState.PRESENT]
            if ranks := [rank for node in present for rank in node.ranks if rank not in node.exits]:
                effects.warnings.append(_lingers(ranks))
        if self._ended_at is not None and not self._escalated and now - self._ended_at > ESCALATE_AFTER_S:
            self._escalated = True
            effects.kill_steps = True
        return self._settle(effects, now)

    def _is_well(self, now: float) -> bool:
        """Nothing has ended and nobody is silent. Asked of a thousand crews ten times a second while reports wait, hence no
        helper objects."""
        if self._ended_at is not None or now - self._left_at > LINGERS_AFTER_S:
            return False
        for node in self._nodes.values():
            if node.state is NodeState.PRESENT:
                if now - node.heard_at > SILENT_AFTER_S:
                    return False
            elif node.state is not NodeState.EXPECTED:
                return False
        return True

    def forgive_silence(self, gap_s: float) -> None:
        """The driver itself was stopped for so long: nobody's silence counts."""
        for node in self._nodes.values():
            node.heard_at += gap_s

    @property
    def has_reported(self) -> bool:
        return self._num_reports > 0

    @property
    def silent_nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self._nodes.values() if node.state is NodeState.SILENT)

    # ---- inside

    def _refuse(self, now: float, retry_at: float, why: str) -> None:
        if self._outcome is None and self._refused is None:
            self._refused = (retry_at, why)
            self._why = why
            self._ended_at = now

    def _end(self, now: float, outcome: Outcome, why: str) -> Effects:
        effects = Effects()
        if not self.closed and self._refused is None:
            self._tell_end(effects, now, outcome, why)
            if outcome is Outcome.KILLED and any(
                node.state is not NodeState.PRESENT and node.state is not NodeState.GONE
                for node in self._nodes.values()
            ):
                effects.kill_steps = True  # who has not said hello cannot be told
        return self._settle(effects, now)

    def _tell_end(self, effects: Effects, now: float, outcome: Outcome, why: str) -> None:
        if self._outcome is None:
            self._outcome = outcome
            self._why = why
            self._ended_at = now
            self._tell_all_to_kill(effects)

    def _tell_all_to_kill(self, effects: Effects) -> None:
        for node in self._nodes.values():
            if node.state is NodeState.PRESENT:
                peer = supervisor_peer(self.trial_id, self.incarnation, node.name)
                effects.sends.append((peer, wire.KillRanks(self.trial_id, self.incarnation, self._why)))
            elif node.state is NodeState.EXPECTED:
                effects.kill_steps = True

    def _settle(self, effects: Effects, now: float) -> Effects:
        """Close when every node is settled."""
        if self.closed:
            return effects
        states = [node.state for node in self._nodes.values()]
        open_nodes = [
            node for node in self._nodes.values() if node.state in (NodeState.EXPECTED, NodeState.PRESENT)
        ]
        if open_nodes:
            late = self._ended_at is not None and now - self._ended_at > SETTLE_LIMIT_S
            if not late:
                return effects
        self.closed = True
        unproven = tuple(
            atom for node in self._nodes.values() if node.state is not NodeState.GONE for atom in node.atoms
        )
        if self._refused is not None and all(state is NodeState.GONE for state in states):
            retry_at, why = self._refused
            effects.events.append(
                ev.LaunchRefused(
                    time=now,
                    trial_id=self.trial_id,
                    incarnation=self.incarnation,
                    retry_at=max(retry_at, now),
                    why=why,
                )
            )
            return effects
        outcome, why = self._verdict()
        effects.events.append(
            ev.TrialExited(
                time=now,
                trial_id=self.trial_id,
                incarnation=self.incarnation,
                outcome=outcome,
                why=why,
                unproven=unproven,
            )
        )
        return effects

    def _verdict(self) -> tuple[Outcome, str]:
        if self._leaving is not None and self._goodbye_stands and self._outcome in (None, Outcome.KILLED):
            # Killed after its goodbye (a slow exit): what it saved and said counts.
            if self._leaving.how == "completed":
                return Outcome.COMPLETED, self._leaving.why or "the script is done"
            return Outcome.PREEMPTED, self._leaving.why
        if self._refused is not None:
            return Outcome.LAUNCH_FAILED, self._why
        if self._outcome is Outcome.KILLED and self.silent_nodes:
            # Killed because another trial's supervisor there was missed first, or since it was silent itself.
            return Outcome.NODE_FAILED, f"{self._why}; nothing is heard of {', '.join(self.silent_nodes)}"
        if self._outcome is not None:
            return self._outcome, self._why
        if self._num_reports == 0:
            return Outcome.CRASHED, (
                "the ranks ended with code 0 without a report and without a goodbye: does the script call hpcsched.trial() and "
                "loop over it?"
            )
        return (
            Outcome.CRASHED,
            f"the ranks ended with code 0 after iteration {self.last_iteration} without a goodbye",
        )

    def _returned(self, name: str, now: float) -> Effects:
        node = self._nodes.get(name)
        if node is None or node.state is NodeState.GONE:
            return Effects()
        node.state = NodeState.GONE
        return Effects(events=[ev.AtomsReturned(time=now, atoms=node.atoms)])

    @property
    def settled(self) -> bool:
        """Closed, and nothing of it can come back: the driver may forget it."""
        return self.closed and all(node.state is NodeState.GONE for node in self._nodes.values())

    @staticmethod
    def _merge(into: Effects, other: Effects) -> None:
        into.events += other.events
        into.sends += other.sends
        into.kill_steps |= other.kill_steps
        into.notes += other.notes
        into.warnings += other.warnings
