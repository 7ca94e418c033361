"""Rendered sbatch scripts: what stands in them, and that bash and shellcheck take them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.batch.prepare import prepare
from hpcsched.batch.script import (
    JobRequest,
    directives,
    no_cores,
    parse_job_time,
    render,
    slurm_time,
    template_names,
)
from hpcsched.batch.sites import Site, load_site
from hpcsched.errors import InputError

EXPERIMENT = """\
[experiment]
name = "mine"
metric = "accuracy"
deadline = "1h"
[trial]
command = ["python", "train.py"]
max_iterations = 9
[search.space]
rate = { uniform = [0.0, 1.0] }
"""

RICH = Site(
    account="my-project",
    partition="gpu",
    gpu_option="gres",
    gpu_type="a100",
    gpus_per_node=4,
    cpus_per_node=32,
    mem="0",
    interface="hsn0",
    modules=("python/3.11", "cuda"),
    setup=('source "$HOME/venv/bin/activate"',),
    env={"NOTE": "it's $HOME; `id`"},
    container="/images/my image.sif",
    container_mounts=("/scratch:/scratch",),
    sbatch=("--reservation=a course",),
)


def request(folder: Path) -> JobRequest:
    return JobRequest(
        file=folder / "experiment.toml",
        run_dir=folder / "runs" / "one",
        job_name="mine",
        nodes=4,
        time_s=7200.0,
        python="/opt/venv/bin/python",
    )


@pytest.mark.parametrize("template", template_names())
@pytest.mark.parametrize("site", [Site(container="image"), RICH], ids=["plain site", "rich site"])
def test_bash_and_shellcheck_take_every_template(tmp_path: Path, template: str, site: Site) -> None:
    shellcheck = shutil.which("shellcheck")
    file = tmp_path / "job.sh"
    file.write_text(render(request(tmp_path / "a 'folder' of $mine"), site, template))
    done = subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; only `bash -n` was done")
    done = subprocess.run([shellcheck, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@settings(deadline=None)
@given(
    name=st.text(
        st.characters(exclude_characters="\0\n\r/", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
    )
)
def test_a_folder_of_any_name_reaches_the_driver_as_one_word(name: str) -> None:
    asked = request(Path("/data") / name)
    last = render(asked, Site()).rstrip("\n").rpartition("\nexec ")[2]
    assert shlex.split(last) == [
        "/opt/venv/bin/python", "-P", "-m", "hpcsched", "run", str(asked.file), "--run-dir", str(asked.run_dir),
    ]  # fmt: skip


def test_the_options_of_a_site_come_in_its_spelling(tmp_path: Path) -> None:
    lines = directives(request(tmp_path), RICH)
    assert "--gres=gpu:a100:4" in lines
    assert "--cpus-per-task=32" in lines
    assert '--reservation="a course"' in lines
    assert "--gpus-per-node=2" in directives(request(tmp_path), Site(gpus_per_node=2))
    assert not [line for line in directives(request(tmp_path), Site()) if "gpu" in line]


@pytest.mark.parametrize(
    ("site", "template", "sbatch", "is_said"),
    [
        (Site(gpus_per_node=4), "plain", (), True),
        (Site(gpus_per_node=4, gpu_option="gres"), "requeue", (), True),
        (Site(gpus_per_node=4), "exclusive", (), False),
        (Site(gpus_per_node=4, cpus_per_node=32), "plain", (), False),
        (Site(gpus_per_node=4, sbatch=("--cpus-per-gpu=8",)), "plain", (), False),
        (Site(gpus_per_node=4), "plain", ("--exclusive",), False),
        (Site(), "plain", (), False),
    ],
)
def test_a_job_with_gpus_that_asks_for_no_cores_is_told(
    tmp_path: Path, site: Site, template: str, sbatch: tuple[str, ...], is_said: bool
) -> None:
    text = render(msgspec.structs.replace(request(tmp_path), sbatch=sbatch), site, template)
    told = no_cores(text)
    assert (told is not None) == is_said
    assert told is None or "--template exclusive" in told


def test_a_requeued_job_goes_on_and_a_plain_one_is_never_requeued(tmp_path: Path) -> None:
    text = render(request(tmp_path), Site(), "requeue")
    assert "#SBATCH --requeue" in text and "#SBATCH --signal=B:USR2@60" in text
    assert f"exec /opt/venv/bin/python -P -m hpcsched run --resume {tmp_path}/runs/one --requeue" in text
    assert "--no-requeue" in render(request(tmp_path), Site(), "plain")


def test_the_apptainer_template_wraps_the_ranks(tmp_path: Path) -> None:
    text = render(request(tmp_path), Site(container="/i.sif"), "apptainer")
    words = shlex.split(text.rpartition("\nexec ")[2].replace("\\\n", " "))
    key, _, value = words[words.index("--set") + 1].partition("=")
    assert key == "launcher.wrap"
    assert json.loads(value)[:3] == ["apptainer", "exec", "--nv"]
    assert json.loads(value)[-1] == "/i.sif"


@pytest.mark.parametrize("template", ["apptainer", "pyxis"])
def test_a_container_template_without_an_image_says_where_to_write_it(tmp_path: Path, template: str) -> None:
    with pytest.raises(InputError, match="container ="):
        render(request(tmp_path), Site(), template)


def test_an_unknown_template_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exclusive, plain, pyxis, requeue"):
        render(request(tmp_path), Site(), "nonsense")


def test_a_template_of_ones_own_may_build_on_ours(tmp_path: Path) -> None:
    own = tmp_path / "own.sh.j2"
    own.write_text('{% extends "_job.sh.j2" %}{% block directives %}#SBATCH --comment=own\n{% endblock %}')
    assert "#SBATCH --comment=own" in render(request(tmp_path), Site(), str(own))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90m", 5400), ("90", 5400), ("30:00", 1800), ("2:00:00", 7200), ("1-12", 129600), ("1-12:30:15", 131415)],
)  # fmt: skip
def test_a_time_may_be_ours_or_slurms(text: str, seconds: float) -> None:
    assert parse_job_time(text) == seconds


@given(seconds=st.integers(60, 10**7))
def test_slurms_time_reads_back(seconds: int) -> None:
    assert parse_job_time(slurm_time(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "10s", "-1", "1:2:3:4"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--time"):
        parse_job_time(text)


def test_a_site_of_ones_own_is_found_before_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "generic.toml").write_text('account = "own"')
    assert load_site(None, {"HPCSCHED_SITES": str(tmp_path)}).account == "own"
    assert load_site(None, {}).account is None
    assert load_site(str(tmp_path / "generic.toml"), {}).account == "own"


@pytest.mark.parametrize(
    ("text", "what"),
    [("acount = 1", "acount"), ("gpus_per_node = 0", "1 or more"), ("x = ", "TOML"), ('[env]\n"A B" = "c"', "variable"), ('gpu_option = "gpu"', "gpu_option")],
)  # fmt: skip
def test_a_mistake_in_a_site_is_named(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InputError, match=what):
        load_site(str(tmp_path / "bad.toml"), {})


def test_the_experiment_is_checked_before_anything_is_queued(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    now = datetime(2026, 11, 30, 12)
    with pytest.raises(InputError, match=r"train\.py"):
        prepare(file, nodes=1, time="1h", environ={}, now=now)
    (tmp_path / "train.py").touch()
    prepared = prepare(file, nodes=1, time="1h", environ={}, now=now)
    assert prepared.request.run_dir == tmp_path / "runs" / "mine-20261130-120000"
    with pytest.raises(InputError, match="--nodes"):
        prepare(file, nodes=0, time="1h", environ={}, now=now)
