"""Submitting to the real test cluster: each template, and submitit with accounting."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcsched
from hpcsched.runfolder import RunFolder
from tests.support.cluster import Cluster, cluster, slurmbox  # noqa: F401
from tests.support.e2e import Job, environs_of_ranks, light_job, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", ""}
SITE = "cpus_per_node = 4\ngpus_per_node = 2\n"


def submitted(box: Cluster, job: Job, *args: str, site: str = SITE) -> str:
    """`hpcsched submit` as a user would; the job id."""
    file = job.folder / "site.toml"
    file.write_text(site)
    done = box.run(
        [sys.executable, "-m", "hpcsched", "submit", str(job.file), "--run-dir", str(job.run_dir), "--site", str(file), *args]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("job ", 1)[1].split(";")[0]


def told(job: Job) -> str:
    return "\n".join(file.read_text(errors="replace") for file in sorted(job.folder.glob("*.out")))


def ends(box: Cluster, job: Job, job_id: str) -> str:
    wait_until(lambda: box.job_state(job_id) in OVER, lambda: f"job {job_id} ends\n{told(job)}", limit_s=240)
    return box.job_state(job_id)


def best_of(job: Job) -> dict[str, object]:
    file = RunFolder(job.run_dir).best / "best.json"
    assert file.exists(), told(job)
    facts: dict[str, object] = json.loads(file.read_text())
    return facts


@pytest.mark.parametrize("template", ["plain", "exclusive"])
def test_a_submitted_experiment_leaves_the_best_model(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
    template: str,
) -> None:
    job = light_job(tmp_path, [{"height": 0.5}, {"height": 0.9}], num_atoms=None, deadline="60s")
    job_id = submitted(cluster, job, "--nodes", "2", "--time", "5m", "--template", template)
    assert ends(cluster, job, job_id) == "COMPLETED", told(job)
    assert best_of(job)["trial_id"] == 1
    machine = json.loads((job.run_dir / "machine.json").read_text())
    assert "n1" in json.dumps(machine), machine
    provenance = hpcsched.load(job.run_dir).provenance
    assert provenance["queue_s"] >= 0.0
    assert 0.0 < provenance["job_start_s"] < 60.0


def test_the_network_that_a_site_names_reaches_every_rank(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Two ranks on two nodes get the site's interface and its NCCL variables."""
    site = SITE + 'interface = "eth0"\n[env]\nNCCL_DEBUG = "WARN"\nNCCL_IB_DISABLE = "1"\n'
    job = light_job(
        tmp_path, [{"step_s": 0.5}] * 2, num_atoms=None, deadline="60s", max_iterations=100_000
    )  # fmt: skip
    job_id = submitted(cluster, job, "--nodes", "2", "--time", "5m", "--gpus-per-node", "1", site=site)
    ranks: dict[str, dict[str, str]] = {}

    def seen() -> bool:
        ranks.update({env["HPCSCHED_NODE"]: env for _, env in environs_of_ranks(job.run_dir)})
        return len(ranks) == 2

    wait_until(seen, lambda: f"a rank trains on each node\n{told(job)}", limit_s=120)
    cluster.run(["scancel", job_id])
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_IB_DISABLE")
    assert [[env.get(name) for name in names] for env in ranks.values()] == [
        ["eth0", "eth0", "WARN", "1"]
    ] * 2
    ends(cluster, job, job_id)


def test_a_chain_goes_on_in_the_next_allocation(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    job = light_job(
        tmp_path, [{"step_s": 1.0}], num_atoms=None, max_iterations=12, deadline=None, experiment='span = "chain"'
    )  # fmt: skip
    job_id = submitted(cluster, job, "--time", "10m", "--template", "requeue")
    folder = RunFolder(job.run_dir)
    wait_until(
        lambda: list(folder.trials.glob("0/1/checkpoint-*")),
        lambda: f"a checkpoint is there\n{told(job)}",
        limit_s=180,
    )
    cluster.run(["scancel", "--batch", "--signal=USR2", job_id])  # what --signal=B:USR2@N does before the end
    wait_until(
        lambda: "back in the queue" in told(job), lambda: f"the job is requeued\n{told(job)}", limit_s=120
    )
    # Slurm holds a requeued job back for a while; its owner may say "now".
    cluster.run(["scontrol", "update", f"jobid={job_id}", "StartTime=now"])
    assert ends(cluster, job, job_id) == "COMPLETED", told(job)
    assert best_of(job)["training_iteration"] == 12
    assert folder.segment(2).exists(), "the second allocation is a second life of the same run"


def test_the_apptainer_template_starts_each_rank_through_apptainer(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Apptainer itself is imitated: an executable of that name notes how it was called and runs the command."""
    bin_folder, seen = tmp_path / "bin", tmp_path / "seen"
    bin_folder.mkdir()
    fake = bin_folder / "apptainer"
    fake.write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$*" >>{seen}\nwhile [ "$1" != image.sif ]; do shift; done\nshift\nexec "$@"\n'
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    job = light_job(tmp_path / "job", [{}], num_atoms=None, deadline="60s")
    job_id = submitted(
        cluster, job, "--time", "5m", "--template", "apptainer", site=SITE + 'container = "image.sif"\n'
    )
    assert ends(cluster, job, job_id) == "COMPLETED", told(job)
    assert f"exec --nv --bind {job.folder}:{job.folder}" in seen.read_text()


@pytest.fixture(scope="module")
def accounting() -> Iterator[Cluster]:
    missing = [name for name in ("slurmdbd", "mariadbd") if shutil.which(name) is None]
    if missing:
        pytest.skip(
            f"no {', '.join(missing)}: submitit asks sacct, which needs accounting (ACCOUNTING=1 tests/slurmbox/slurmbox install)"
        )
    with slurmbox(ACCOUNTING="1", NODES="2") as made:
        yield made


def test_a_submitit_jobs_result_is_the_best_trial(
    accounting: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    import hpcsched

    monkeypatch.setenv("SLURM_CONF", str(accounting.root / "slurm.conf"))
    job = light_job(tmp_path, [{"height": 0.5}, {"height": 0.9}], num_atoms=None, deadline="60s")
    site = tmp_path / "site.toml"
    site.write_text(SITE)
    handle = hpcsched.submit(job.file, nodes=2, time="5m", site=str(site), run_dir=job.run_dir)
    best = handle.result()
    assert best.trial_id == 1
    assert best.config["height"] == 0.9
    assert best.best.joinpath("best.json").exists()
    assert handle.done()
    assert "n2" in (job.run_dir / "machine.json").read_text(), "both nodes are the driver's"
    wait_until(lambda: handle.watcher.get_state(handle.job_id, mode="force") == "COMPLETED", "sacct says so")
