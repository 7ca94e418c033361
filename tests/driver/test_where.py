"""`[driver] where`: a driver whom no node can reach moves to the first node of its job."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcsched.driver.whereabouts import MOVED, must_move, run_words
from hpcsched.errors import CommandError
from hpcsched.launch.allocation import Allocation
from hpcsched.launch.connect_back import Reached, listening, try_addresses
from tests.support.cluster import Cluster, cluster, slurmbox  # noqa: F401
from tests.support.e2e import light_job, wait_until

SALLOC = ("--nodes", "2", "--gres=gpu:2", "--exclusive", "--no-kill", "--time=10")


@pytest.fixture(scope="module")
def walled() -> Iterator[Cluster]:
    if shutil.which("nft") is None:
        pytest.skip("no nft: the firewall of the test cluster needs nftables")
    with slurmbox(FIREWALL="1", NODES="2", GPUS="2") as made:
        yield made


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_behind_a_firewall_the_driver_moves_to_the_first_node(walled: Cluster, tmp_path: Path) -> None:
    job = light_job(tmp_path, [{"height": 0.5}, {"height": 0.9}], num_atoms=None, deadline="60s")
    with walled.allocation(*SALLOC) as allocation:
        run = job.start(inside=allocation)
        assert run.ends() == 0, run.told()
        assert "n1 cannot connect back to this host" in run.err
        assert '"host":"n1"' in run.folder.lease.read_text().replace(" ", "")
        assert run.out.count("best trial    1") == 1, "the terminal keeps the driver's words, once"
        assert "\x1b" not in run.out and "\r" not in run.out, "a file is no terminal"
        assert f"10.77.{walled.instance}.1:" in run.err, (
            "the address that was tried is the one towards the node"
        )
        run.check()


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_ctrl_c_and_orders_reach_a_driver_that_has_moved(walled: Cluster, tmp_path: Path) -> None:
    """It takes orders on the node that it has moved to; the firewall lets connections through from here to there."""
    job = light_job(tmp_path, [{"step_s": 0.3}], num_atoms=None, max_iterations=1000, deadline="5m")
    with walled.allocation(*SALLOC) as allocation:
        run = job.start(inside=allocation)
        wait_until(lambda: list(run.folder.trials.glob("0/1/checkpoint-*")), run.told)
        shutil.rmtree(run.folder.control)  # no file can be left
        told = run.command("extend", str(job.run_dir), "1m")
        assert told.stdout.startswith("the deadline is 1m later, at "), told.stdout + told.stderr
        told = run.command("extend", str(job.run_dir), "2h")
        assert "allocation's end" in told.stdout, told.stdout + told.stderr
        told = run.command("extend", str(job.run_dir), "1m")
        assert told.returncode == 2
        assert "scontrol update" in told.stderr
        run.signal(signal.SIGINT)
        assert run.ends() == 75, run.told()
        run.check()
        again = job.start(inside=allocation, resume=True)
        wait_until(
            lambda: run.folder.segment(2).exists() and list(run.folder.trials.glob("0/2/checkpoint-*")),
            again.told,
        )
        again.signal(signal.SIGINT)
        assert again.ends() == 75, again.told()


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_where_nodes_can_connect_back_it_stays_and_with_node_it_goes(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    with cluster.allocation(*SALLOC) as allocation:
        stays = light_job(tmp_path / "stays", [{}], num_atoms=None, deadline="60s").start(inside=allocation)
        assert stays.ends() == 0, stays.told()
        assert '"host":"n1"' not in stays.folder.lease.read_text().replace(" ", "")
        goes = light_job(
            tmp_path / "goes", [{}], num_atoms=None, deadline="60s", extra='[driver]\nwhere = "node"'
        ).start(inside=allocation)
        assert goes.ends() == 0, goes.told()
        assert '"host":"n1"' in goes.folder.lease.read_text().replace(" ", "")


def an_allocation(driver_node: str | None = None) -> Allocation:
    return Allocation(job_id="7", nodes=("localhost",), driver_node=driver_node)


def refused(argv: object, *, timeout_s: float, env: object) -> str:
    raise CommandError(("srun",), 1, "", "srun: error: no")


def test_a_driver_on_a_node_and_one_that_has_moved_never_ask() -> None:
    said: list[str] = []
    assert not must_move("auto", an_allocation("n1"), {}, refused, say=said.append)
    assert not must_move("auto", an_allocation(), {MOVED: "1"}, refused, say=said.append)
    assert not must_move("here", an_allocation(), {}, refused, say=said.append)
    assert must_move("node", an_allocation(), {}, refused, say=said.append)
    assert not said


def test_a_step_that_fails_leaves_the_driver_here_and_says_so() -> None:
    said: list[str] = []
    assert not must_move("auto", an_allocation(), {}, refused, say=said.append)
    assert "not found out" in said[0]


def test_a_port_is_reached_as_long_as_somebody_listens() -> None:
    with listening() as port:
        assert try_addresses("n", port, ["127.0.0.1"]) == Reached("n", "127.0.0.1")
    gone = try_addresses("n", port, ["127.0.0.1"])
    assert gone.address is None and "127.0.0.1" in gone.why


def test_a_stranger_at_the_port_does_not_count_as_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def be_a_stranger() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-x\n")

        thread = threading.Thread(target=be_a_stranger, daemon=True)
        thread.start()
        found = try_addresses("n", server.getsockname()[1], ["127.0.0.1"])
        thread.join(10)
    assert found.address is None
    assert "somebody else answers" in found.why


def test_what_was_asked_is_handed_on() -> None:
    words = run_words(
        "/x/e.toml", "/x/run", {"launcher.kind": "srun", "experiment.deadline": None}, resume=False
    )
    assert words == ("run", "/x/e.toml", "--run-dir", "/x/run", "--set", 'launcher.kind="srun"')
    assert run_words("/x/run", "/x/run", {}, resume=True) == ("run", "--resume", "/x/run")
