"""A node that takes steps and kills whatever starts on it. (A file of its own: the night of `test_nodes_on_slurm` holds all nodes.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsched.core import events as ev
from tests.support.cluster import Cluster
from tests.support.e2e import light_job

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.mark.long
def test_a_node_that_keeps_killing_trials_is_set_aside(tmp_path: Path, cluster: Cluster) -> None:
    """Whatever starts on n2 dies at once, before anybody has reported; the experiment loses some incarnations and not one trial."""
    job = light_job(
        tmp_path, [{"step_s": 0.2}] * 12, max_iterations=6, num_atoms=None, deadline="30m",
        launcher="""wrap = ["sh", "-c", 'test "$HPCSCHED_NODE" != n2 && exec "$@"', "sh"]""",
    )  # fmt: skip
    with cluster.allocation("-N2", "-w", "n1,n2", "--gres=gpu:4", "--exclusive", "--no-kill") as allocation:
        run = job.start(inside=allocation)
        assert run.ends() == 0, run.told()
        run.check()
    aside = [event for event in run.events(ev.MachineChanged) if event.down]
    assert len(aside) == 1, aside
    assert "n2" in aside[0].why
    assert run.status["trials"]["completed"] == 12
    deaths = [event for event in run.events(ev.TrialExited) if event.outcome.value != "completed"]
    assert 3 <= len(deaths) <= 8, deaths  # those that had been started there already
    blamed = [event for event in deaths if event.outcome.value == "crashed"]
    assert len(blamed) <= 2, blamed
