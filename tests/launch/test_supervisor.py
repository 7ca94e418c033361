"""Dialogues of a real supervisor process with a real channel server: every way a rank's life can go on one node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcsched.launch.processes import marked
from hpcsched.launchspec import LaunchNode, LaunchSpec
from hpcsched.wire import (
    Heartbeat,
    RankExited,
    RankNow,
    RankProgress,
    RanksStarted,
    SupervisorGoodbye,
    SupervisorHello,
    SupervisorRefuses,
)
from tests.support.dialogue import LIMIT_S, FakeDriver, alive, driver_in, wait_until

WAITS = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(60)\n"


class Running:
    """Starts supervisors by hand, as a launcher would, and leaves none behind."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, driver: FakeDriver, spec: LaunchSpec, *, node: str = "here", env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        file = driver.folder.launch_file(spec.trial_id, spec.incarnation)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hpcsched.launch.supervisor", str(file), "--node", node],
            env=dict(os.environ) | (env or {}),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.processes.append(process)
        return process


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    with driver_in(tmp_path / "run") as made:
        yield made


@pytest.fixture
def running(driver: FakeDriver) -> Iterator[Running]:
    made = Running()
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.wait()
    left = marked({"HPCSCHED_RUN_DIR": str(driver.folder.root)})
    for process_left in left:
        os.kill(process_left.pid, signal.SIGKILL)
    assert not left, f"processes left behind: {left}"


def test_ranks_that_end_well_are_told_one_by_one_and_then_goodbye(
    driver: FakeDriver, running: Running
) -> None:
    spec = driver.spec("import os; print('rank', os.environ['RANK'])", num_ranks=2)
    process = running.start(driver, spec)
    hello = driver.one(SupervisorHello)
    assert (hello.node, hello.pid, hello.step_id) == ("here", process.pid, "")
    started = driver.one(RanksStarted)
    exits = driver.wait_for(RankExited, num=2)
    assert {each.rank: each.code for each in exits} == {0: 0, 1: 0}
    assert driver.one(SupervisorGoodbye).exits == {0: 0, 1: 0}
    assert process.wait(LIMIT_S) == 0
    assert set(started.pids) == {0, 1}
    assert [driver.rank_log(spec, rank) for rank in (0, 1)] == ["rank 0\n", "rank 1\n"]


MEMORY_POLICY = """
import ctypes, os
mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
number = {"x86_64": 239, "aarch64": 236, "ppc64le": 260}[os.uname().machine]
answer = ctypes.CDLL(None).syscall(number, ctypes.byref(mode), mask, ctypes.c_ulong(1024), None, 0)
print(answer, mode.value, mask[0])
"""
"""What get_mempolicy(2) says: 0, the mode (2: MPOL_BIND), the NUMA nodes as bits."""


@pytest.mark.parametrize(
    ("memory_nodes", "env", "expected"),
    [((0,), {}, "0 2 1\n"), ((), {}, "0 0 0\n"), ((0,), {"HPCSCHED_MEMORY_NODES": ""}, "0 0 0\n")],
)
def test_a_rank_takes_memory_from_the_numa_nodes_of_its_placement(
    driver: FakeDriver,
    running: Running,
    memory_nodes: tuple[int, ...],
    env: dict[str, str],
    expected: str,
) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    node = LaunchNode("here", ("0",), cores, None, 0, ("0",), memory_nodes=memory_nodes)
    spec = driver.spec(MEMORY_POLICY, nodes=(node,), env=env)
    running.start(driver, spec)
    driver.one(SupervisorGoodbye)
    told = driver.rank_log(spec)
    if told.startswith("-1"):
        pytest.skip(
            "this computer does not let memory policies be read (set_mempolicy is refused in some containers)"
        )
    assert told == expected


def test_a_rank_sees_the_environment_of_the_contract_and_nothing_of_slurm(
    driver: FakeDriver, running: Running
) -> None:
    script = "import json, os, signal\nprint(json.dumps([dict(os.environ), sorted(os.sched_getaffinity(0)), os.getpgrp() == os.getpid() == os.getsid(0), signal.getsignal(signal.SIGTERM) == signal.SIG_IGN == signal.getsignal(signal.SIGINT), os.readlink('/proc/self/fd/0')]))"
    leaked = {
        "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "17", "SLURM_CONF": "/etc/x", "PMIX_RANK": "1", "PMI_RANK": "1",
        "TORCHELASTIC_RUN_ID": "x", "RANK": "9", "NCCL_DEBUG": "WARN", "HPCSCHED_TRIAL_ID": "99",
    }  # fmt: skip
    spec = driver.spec(script, env={"MINE": "yes"}, trial_id=4, incarnation=2, invented_gpus=False)
    running.start(driver, spec, env=leaked | {"CUDA_VISIBLE_DEVICES": "GPU-abc"})
    driver.one(SupervisorGoodbye)
    env, cores, own_session, ignores, stdin = __import__("json").loads(driver.rank_log(spec))
    wanted = {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(spec.master_port), "CUDA_VISIBLE_DEVICES": "GPU-abc",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": str(len(cores)), "MINE": "yes", "NCCL_DEBUG": "WARN",
        "HPCSCHED_TRIAL_ID": "4", "HPCSCHED_INCARNATION": "2", "HPCSCHED_RUN_DIR": spec.run_dir, "SLURM_JOB_ID": "17", "SLURM_CONF": "/etc/x",
    }  # fmt: skip
    assert {name: env.get(name) for name in wanted} == wanted
    assert [name for name in env if name.startswith(("SLURM_P", "SLURM_N", "PMI", "TORCHELASTIC"))] == []
    assert own_session
    assert ignores
    assert stdin == "/dev/null"


def test_two_ranks_get_disjoint_cores_where_there_are_enough(driver: FakeDriver, running: Running) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core only")
    spec = driver.spec("import os; print(sorted(os.sched_getaffinity(0)))", num_ranks=2)
    running.start(driver, spec)
    driver.one(SupervisorGoodbye)
    first, second = (set(eval(driver.rank_log(spec, rank))) for rank in (0, 1))
    assert first and second and not first & second


def test_each_rank_gets_the_cores_of_its_own_gpu(driver: FakeDriver, running: Running) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    if len(cores) < 2:
        pytest.skip("one core only")
    node = LaunchNode("here", ("0", "1"), cores, None, 0, ("0", "1"), gpu_cores=(cores[1:], cores[:1]))
    spec = driver.spec(
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])", nodes=(node,)
    )
    running.start(driver, spec)
    driver.one(SupervisorGoodbye)
    assert [driver.rank_log(spec, rank) for rank in (0, 1)] == [
        f"{list(mine)} {len(mine)}\n" for mine in node.gpu_cores
    ]


def test_a_rank_that_crashes_ends_the_others_at_once_and_shows_the_end_of_its_log(
    driver: FakeDriver, running: Running
) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1':\n    print('\\x1b[31mbad\\x1b[0m\\x07 news'); sys.exit(7)\ntime.sleep(600)"
    spec = driver.spec(script, num_ranks=2)
    process = running.start(driver, spec)
    crashed = driver.one(RankExited, rank=1)
    assert (crashed.code, crashed.tail, crashed.out_of_memory) == (7, "bad news", False)
    assert driver.one(RankExited, rank=0).code == -signal.SIGKILL
    assert driver.one(SupervisorGoodbye).exits == {0: -9, 1: 7}
    assert process.wait(LIMIT_S) == 1


@pytest.mark.parametrize(
    "last_words",
    [
        "raise MemoryError",
        "import sys; print('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate'); sys.exit(1)",
    ],
)
def test_running_out_of_memory_is_told_apart_from_a_crash(
    driver: FakeDriver, running: Running, last_words: str
) -> None:
    running.start(driver, driver.spec(last_words))
    assert driver.one(RankExited).out_of_memory


def test_a_failed_gpu_is_found_above_the_frames_that_torch_prints(
    driver: FakeDriver, running: Running
) -> None:
    words = "uncorrectable ECC error encountered"
    script = f"import sys; print('CUDA error: {words}'); print('frame: c10::Error\\n' * 200); sys.exit(1)"
    running.start(driver, driver.spec(script, invented_gpus=False), env={"CUDA_VISIBLE_DEVICES": "GPU-abc"})
    died = driver.one(RankExited)
    assert words not in died.tail
    assert died.gpu_failure == words


def test_a_command_that_does_not_exist_is_named(driver: FakeDriver, running: Running) -> None:
    running.start(driver, driver.spec(["no-such-program", "train.py"]))
    exited = driver.one(RankExited)
    assert exited.code == 127
    assert "no-such-program" in exited.tail


def test_a_hung_rank_goes_when_the_driver_says_so_though_it_ignores_sigterm(
    driver: FakeDriver, running: Running
) -> None:
    spec = driver.spec(WAITS, num_ranks=2)
    process = running.start(driver, spec)
    pids = driver.one(RanksStarted).pids
    os.kill(pids[0], signal.SIGTERM)  # at any moment of its life
    driver.wait_log(spec, "ready", rank=0)
    os.kill(pids[0], signal.SIGTERM)
    driver.wait_log(spec, "ready", rank=1)
    driver.kill(spec)
    assert driver.one(SupervisorGoodbye).exits == {0: -9, 1: -9}
    assert not any(alive(pid) for pid in pids.values())
    assert process.wait(LIMIT_S) == 1


FORKS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
grandchild = subprocess.run([sys.executable, '-c', '''
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print("daemon", os.getpid(), flush=True)
os.execvpe("sleep", ["sleep", "600"], {})
'''])
print('child', child.pid, flush=True)
"""


@pytest.mark.parametrize("ending", ["by itself", "killed"])
def test_whatever_a_rank_forked_is_gone_before_goodbye(
    driver: FakeDriver, running: Running, ending: str
) -> None:
    """Also a daemon: two forks, a session of its own, an empty environment."""
    spec = driver.spec(FORKS + ("" if ending == "by itself" else "while True: time.sleep(60)"))
    running.start(driver, spec)
    words = driver.wait_log(spec, "child").split()
    driver.wait_log(spec, "daemon")
    words = driver.rank_log(spec).split()
    pids = [int(word) for word in words if word.isdecimal()]
    assert len(pids) == 2
    if ending == "killed":
        assert all(alive(pid) for pid in pids)
        driver.kill(spec)
    goodbye = driver.one(SupervisorGoodbye)
    assert [pid for pid in pids if alive(pid)] == []
    assert goodbye.exits == {0: 0 if ending == "by itself" else -9}


def test_who_deletes_what_a_rank_has_shared_may_end_and_the_goodbye_does_not_wait_for_it(
    driver: FakeDriver, running: Running, tmp_path: Path
) -> None:
    """torch_shm_manager, which torch starts beside a rank, deletes files in /dev/shm 2 s after the last of its clients has gone."""
    shared, goodbye = tmp_path / "torch_1_2_3", tmp_path / "goodbye"
    shared.touch()
    cleaner = f"until [ -e {goodbye} ]; do sleep 0.02; done; rm {shared}; exit"
    spec = driver.spec(
        "import subprocess, time\n"
        f"subprocess.Popen(['torch_shm_manager', '-c', {cleaner!r}], executable='/bin/bash')\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    process = running.start(driver, spec)
    driver.wait_log(spec, "ready")
    driver.kill(spec)
    driver.one(SupervisorGoodbye)
    goodbye.touch()
    process.wait(20.0)
    assert not shared.exists()


def test_a_line_of_fifty_megabytes_hurts_nobody(driver: FakeDriver, running: Running) -> None:
    spec = driver.spec("import sys\nfor _ in range(50): sys.stdout.write('x' * 1_000_000)\nsys.exit(3)")
    running.start(driver, spec)
    exited = driver.one(RankExited)
    assert exited.code == 3
    assert exited.tail == f"{'x' * 197} ... {'x' * 197}"


def test_a_gpu_count_that_was_not_promised_is_refused(driver: FakeDriver, running: Running) -> None:
    spec = driver.spec(
        WAITS, invented_gpus=False, nodes=(LaunchNode("here", ("3",), (), None, 0, ("0", "1", "2", "3")),)
    )
    process = running.start(driver, spec, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    refusal = driver.one(SupervisorRefuses)
    assert refusal.problem == "mismatch"
    assert "holds 4 GPUs" in refusal.why
    assert "shows 2 (0,1)" in refusal.why
    assert process.wait(LIMIT_S) == 3
    assert not driver.all_of(RanksStarted)


def test_cores_that_may_not_be_used_are_refused(driver: FakeDriver, running: Running) -> None:
    spec = driver.spec(WAITS, nodes=(LaunchNode("here", ("0",), (0, 4095), None, 0, ("0",)),))
    running.start(driver, spec)
    refusal = driver.one(SupervisorRefuses)
    assert refusal.problem == "mismatch"
    assert "4095 cannot be pinned" in refusal.why


def test_a_port_in_use_is_refused(driver: FakeDriver, running: Running) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        spec = driver.spec(WAITS, master_port=taken.getsockname()[1])
        process = running.start(driver, spec)
        assert driver.one(SupervisorRefuses).problem == "port"
        assert process.wait(LIMIT_S) == 3


def test_a_folder_that_is_not_there_is_refused(driver: FakeDriver, running: Running) -> None:
    running.start(driver, driver.spec(WAITS, cwd="/no/such/folder"))
    refusal = driver.one(SupervisorRefuses)
    assert refusal.problem == "error"
    assert "/no/such/folder" in refusal.why


def test_killing_the_supervisor_ends_its_ranks(driver: FakeDriver, running: Running) -> None:
    spec = driver.spec(WAITS, num_ranks=2)
    process = running.start(driver, spec)
    pids = driver.one(RanksStarted).pids
    driver.wait_log(spec, "ready", rank=0)
    driver.wait_log(spec, "ready", rank=1)
    process.kill()
    wait_until(lambda: not any(alive(pid) for pid in pids.values()), "the ranks are gone", limit_s=5.0)


def test_heartbeats_go_on_while_a_rank_trains(driver: FakeDriver, running: Running) -> None:
    spec = driver.spec(WAITS)
    running.start(driver, spec)
    driver.wait_for(Heartbeat, num=4)
    driver.kill(spec)
    driver.one(SupervisorGoodbye)


def test_heartbeats_come_while_the_ranks_are_being_started(driver: FakeDriver, running: Running) -> None:
    """A log that cannot be opened yet, as on a file system that does not answer: a fifo without a reader."""
    spec = driver.spec("pass", num_ranks=2, heartbeat_s=0.05)
    log = driver.folder.rank_log(spec.trial_id, spec.incarnation, 1)
    os.mkfifo(log)
    process = running.start(driver, spec)
    driver.one(SupervisorHello)
    driver.wait_log(spec, "", rank=0)
    driver.wait_for(Heartbeat, num=len(driver.all_of(Heartbeat)) + 4)
    assert not driver.all_of(RanksStarted)
    reader = os.open(log, os.O_RDONLY)
    driver.one(RanksStarted)
    assert driver.one(SupervisorGoodbye).exits == {0: 0, 1: 0}
    os.close(reader)
    assert process.wait(LIMIT_S) == 0


def test_the_driver_hears_where_the_ranks_are(driver: FakeDriver, running: Running) -> None:
    script = (
        "import os, time\nfrom hpcsched.progress import Phase, Slot\n"
        "slot = Slot(os.environ['HPCSCHED_PROGRESS'], int(os.environ['LOCAL_RANK']))\n"
        "slot.iteration(7); slot.collectives(40 + int(os.environ['RANK'])); slot.phase(Phase.COMPUTE)\ntime.sleep(600)"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    spec = driver.spec(script, num_ranks=2, heartbeat_s=0.05, env=env)
    running.start(driver, spec)

    def told() -> dict[int, RankNow]:
        return {rank.rank: rank for heard in driver.all_of(RankProgress) for rank in heard.ranks}

    wait_until(lambda: len(told()) == 2 and all(rank.still_s > 0 for rank in told().values()), driver.logs)
    assert {rank.rank: (rank.iteration, rank.num_collectives) for rank in told().values()} == {
        0: (7, 40),
        1: (7, 41),
    }
    driver.kill(spec)
    driver.one(SupervisorGoodbye)


def test_a_supervisor_without_its_driver_gives_ranks_time_to_save_and_then_ends_them(
    driver: FakeDriver, running: Running
) -> None:
    spec = driver.spec(WAITS, driver_lost_s=0.5, save_on_exit_s=0.5)
    process = running.start(driver, spec)
    pids = driver.one(RanksStarted).pids
    driver.wait_log(spec, "ready")
    driver.server.close()
    assert process.wait(LIMIT_S) == 1
    assert not alive(pids[0])
    log = driver.folder.supervisor_log(0, 1, "here").read_text()
    assert "ranks have 0.5 s to save" in log


def test_nothing_is_started_for_an_incarnation_that_the_driver_does_not_want(
    driver: FakeDriver, running: Running
) -> None:
    spec = driver.spec("print('ran')")
    driver.kill(spec)
    process = running.start(driver, spec)
    goodbye = driver.one(SupervisorGoodbye)
    assert process.wait(LIMIT_S) in (0, 1)
    assert goodbye.exits in ({}, {0: -9}, {0: 0})


def test_a_launch_file_for_another_node_is_an_error_with_code_2(driver: FakeDriver, running: Running) -> None:
    process = running.start(driver, driver.spec(WAITS), node="elsewhere")
    assert process.wait(LIMIT_S) == 2
