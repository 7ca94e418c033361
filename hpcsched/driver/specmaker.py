"""From the core's StartTrial to the launch spec of an incarnation: who runs where, from which checkpoint, by which port."""

from __future__ import annotations

from hpcsched.config.spec import ExperimentSpec
from hpcsched.core.actions import CheckpointRef, StartTrial
from hpcsched.core.checkpoints import older_than_restart
from hpcsched.core.scheduler import Scheduler
from hpcsched.driver.ports import Ports
from hpcsched.launchspec import Channel, LaunchNode, LaunchSpec, RestorePoint
from hpcsched.runfolder import RunFolder
from hpcsched.topology.machine import Machine, Node, Placement, shares_of


class SpecMaker:
    """Of one driver life. `scheduler` is only read."""

    def __init__(
        self,
        spec: ExperimentSpec,
        folder: RunFolder,
        scheduler: Scheduler,
        machine: Machine,
        channel: Channel,
        ports: Ports,
        *,
        local: bool,
        invented_gpus: bool,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._scheduler = scheduler
        self._machine = machine
        self._nodes = {node.name: node for node in machine.nodes}
        self._channel = channel
        self._ports = ports
        self._local = local
        self._invented_gpus = invented_gpus

    def make(self, action: StartTrial) -> LaunchSpec:
        """Leases a port on the first node: give it back by `give_back`. Raises LaunchError when all are leased."""
        nodes = self.nodes_of(action.placement)
        first = self._nodes[nodes[0].node]
        checkpoint = action.checkpoint
        table = self._spec
        return LaunchSpec(
            trial_id=action.trial_id,
            incarnation=action.incarnation,
            config=self._scheduler.trials[action.trial_id].config,
            command=table.trial.command,
            cwd=table.trial.cwd,
            env=table.trial.env,
            nodes=nodes,
            master_addr="127.0.0.1" if self._local else first.address or first.name,
            master_port=self._ports.lease(first.name),
            channel=self._channel,
            run_dir=str(self._folder.root),
            metric=table.experiment.metric,
            mode=table.experiment.mode,
            max_iterations=table.trial.max_iterations,
            seed=table.experiment.seed,
            restore=None if checkpoint is None else self._path(checkpoint),
            restore_iteration=0 if checkpoint is None else checkpoint.training_iteration,
            restore_incarnation=0 if checkpoint is None else checkpoint.incarnation,
            fallbacks=() if checkpoint is None else self._fallbacks(checkpoint),
            wrap=table.launcher.wrap,
            mpi=table.launcher.mpi,
            invented_gpus=self._invented_gpus,
            interface=None if self._local else table.launcher.interface,
            checkpoint_budget=table.checkpoint.budget,
            checkpoint_background=table.checkpoint.background,
            group_timeout_s=table.timeouts.group,
        )

    def give_back(self, spec: LaunchSpec) -> None:
        """Nothing of it runs any more: its port is free."""
        self._ports.give_back(spec.nodes[0].node, spec.master_port)

    def nodes_of(self, placement: Placement) -> tuple[LaunchNode, ...]:
        """The placement as ranks see it, in the order of the ranks."""
        nodes: list[LaunchNode] = []
        rank = 0
        for share in shares_of(self._machine, placement):
            node = self._nodes[share.node]
            nodes.append(
                LaunchNode(
                    node=share.node,
                    gpus=share.gpus,
                    cores=share.cores,
                    memory_mb=share.memory_mb,
                    first_rank=rank,
                    job_gpus=node.gpus,
                    uuids=_uuids_of(node, share.gpus),
                    memory_nodes=share.memory_nodes,
                    gpu_cores=share.gpu_cores,
                )
            )
            rank += len(share.gpus)
        return tuple(nodes)

    def _fallbacks(self, checkpoint: CheckpointRef) -> tuple[RestorePoint, ...]:
        """Should it be gone or damaged: its copy in `best/`, where that is one, and the trial's older ones likewise."""
        trial = self._scheduler.trials[checkpoint.trial_id]
        best = self._scheduler.best
        points: list[RestorePoint] = []
        for ref in (checkpoint, *older_than_restart(trial)):
            paths = [self._path(ref)]
            if best is not None and best.checkpoint == ref:
                paths.append(str(self._folder.best / "checkpoint"))
            points += [RestorePoint(path, ref.training_iteration, ref.incarnation) for path in paths]
        return tuple(points[1:])

    def _path(self, ref: CheckpointRef) -> str:
        return str(self._folder.checkpoint(ref.trial_id, ref.incarnation, ref.training_iteration))


def _uuids_of(node: Node, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """As the probe saw them; () unless it saw all."""
    known = {device.gpu: device.uuid for device in node.devices}
    uuids = tuple(uuid for gpu in gpus if (uuid := known.get(gpu)) is not None)
    return uuids if len(uuids) == len(gpus) else ()
