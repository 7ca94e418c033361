"""Nodes that were lost are tried by an empty step."""

from __future__ import annotations

from hpcsched.driver.nodewatch import step_runs_on
from hpcsched.errors import CommandError
from tests.support.slurmsays import SlurmSays


def test_a_lost_node_is_tried_with_the_options_that_the_site_wants_of_every_step() -> None:
    slurm = SlurmSays(
        {"srun --network=single_sn_vni": "", "srun": CommandError(("srun",), 1, "", "srun: error: Invalid")}
    )
    assert step_runs_on("n1", {}, slurm, srun_args=("--network=single_sn_vni",))
    assert not step_runs_on("n1", {}, slurm, srun_args=())
    assert slurm.argvs("srun")[0][-2:] == ("--network=single_sn_vni", "true")
