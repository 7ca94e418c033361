"""A real spare, from its file to the ranks that it forks; it preloads a module of the test instead of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hpcsched.launch.zygote_process import environment_fits, zygote_environment
from hpcsched.launchspec import LaunchSpec, SpareSpec
from hpcsched.wire import SpareReady, SupervisorGoodbye, TakeTrial
from tests.support.dialogue import LIMIT_S, FakeDriver, driver_in

SPARE = """
import sys
from hpcsched.launch import spare
spare.preload_of = tuple
sys.exit(spare.main(sys.argv[1:]))
"""
READS = "import os\nthen = dict(os.environ)\n"
SCRIPT = """
import json, os, sys
print(json.dumps(["reads" in sys.modules, getattr(sys.modules.get("reads"), "then", None), dict(os.environ)]))
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FakeDriver]:
    with driver_in(tmp_path / "run") as made:
        yield made


def run_spare(
    driver: FakeDriver, spec: LaunchSpec, env: dict[str, str], inherited: dict[str, str] | None = None
) -> SpareReady:
    """Have a spare that was started with this [trial] env take the incarnation, to its end."""
    file = driver.folder.spare_file(0)
    file.parent.mkdir()
    file.write_bytes(msgspec.json.encode(SpareSpec(0, "here", spec.channel, spec.run_dir, ("reads",), env)))
    process = subprocess.Popen(
        [sys.executable, "-c", SPARE, str(file), "--node", "here"],
        env={**os.environ, **(inherited or {})},
        stdin=subprocess.DEVNULL,
    )
    try:
        ready = driver.one(SpareReady)
        launch_file = str(driver.folder.launch_file(spec.trial_id, spec.incarnation))
        driver.server.send("0.0.sup.here", TakeTrial(0, 0, launch_file))
        driver.one(SupervisorGoodbye, incarnation=spec.incarnation)
        process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()
    return ready


def prepared(driver: FakeDriver, tmp_path: Path) -> tuple[LaunchSpec, dict[str, str]]:
    """An incarnation, and its [trial] env, without which the module to preload is not even found."""
    (tmp_path / "reads.py").write_text(READS)
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "LD_LIBRARY_PATH": str(tmp_path),
        "MKL_NUM_THREADS": "3",
    }
    command = (sys.executable, str(tmp_path / "train.py"))
    return driver.spec(command, env=env, trial_id=7, incarnation=3), env


def test_what_trial_env_sets_is_there_when_modules_are_preloaded_and_the_rank_has_its_own_environment(
    driver: FakeDriver, tmp_path: Path
) -> None:
    spec, env = prepared(driver, tmp_path)
    inherited = {"OMP_PLACES": "cores", "CUDA_VISIBLE_DEVICES": "0,1", "RANK": "9"}
    assert run_spare(driver, spec, env, inherited).cold is None
    warm, then, now = json.loads(driver.rank_log(spec))
    assert warm
    assert {name: then.get(name) for name in env} == env | {"MKL_NUM_THREADS": "1"}
    assert "OMP_PLACES" not in then
    assert {name: now.get(name) for name in env} == env
    cores = os.sched_getaffinity(0)
    assert now["OMP_NUM_THREADS"] == str(len(cores))
    assert (now["RANK"], now["HPCSCHED_TRIAL_ID"], now["MASTER_PORT"]) == ("0", "7", str(spec.master_port))
    assert "OPENBLAS_NUM_THREADS" not in now


def test_a_trial_whose_environment_is_not_the_spares_starts_cold(driver: FakeDriver, tmp_path: Path) -> None:
    spec, env = prepared(driver, tmp_path)
    assert run_spare(driver, spec, env | {"PYTORCH_ALLOC_CONF": "backend:native"}).cold is None
    warm, _, now = json.loads(driver.rank_log(spec))
    assert not warm
    assert now["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_only_what_binds_threads_to_cores_must_wait_for_the_ranks_own_process() -> None:
    for env in ({"LD_PRELOAD": "x", "PYTHONPATH": "y", "KMP_BLOCKTIME": "0"}, {"OMP_PROC_BIND": "FALSE"}):
        assert environment_fits(env, env) is None
    env = {"OMP_PROC_BIND": "close", "GOMP_CPU_AFFINITY": "0-3", "NCCL_DEBUG": "INFO"}
    why = environment_fits(env, env)
    assert why is not None
    assert "sets GOMP_CPU_AFFINITY, OMP_PROC_BIND:" in why
    why = environment_fits({"A": "1", "B": "1", "C": "1"}, {"A": "1", "B": "2"})
    assert why is not None
    assert why.endswith(": B, C")


def test_a_process_that_preloads_inherits_no_binding_of_threads_to_cores() -> None:
    made = zygote_environment({"OMP_PROC_BIND": "close", "OMP_WAIT_POLICY": "active"}, {"TORCH_LOGS": "x"})
    assert "OMP_PROC_BIND" not in made
    assert made["OMP_WAIT_POLICY"] == "active"
    assert made["TORCH_LOGS"] == "x"
