"""Every command and code block of the documentation runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcsched
from hpcsched.batch.sites import load_site
from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from hpcsched.core.view import Policy
from hpcsched.eventlog.reader import read_journal
from hpcsched.eventlog.records import Step
from hpcsched.share import share
from tests.support.cluster import Cluster, slurmbox
from tests.support.docblocks import Block, blocks_of, environ_of, files_of, run_bash, run_python
from tests.support.e2e import clean_environ, light_job, wait_until
from tests.support.runs import a_run, some_settings

pytestmark = pytest.mark.timeout(600)

PAGES = sorted(file.stem for file in share("docs").glob("*.md"))
BASH_TAGS = {"", "slurm", "live", "resume", "install"}
PYTHON_TAGS = {"", "slurm", "policy"}


def sandbox(folder: Path, page: str) -> None:
    """What a reader has who comes to this page: the tutorial's files, and a run."""
    for name, text in files_of("tutorial").items():
        if page != "tutorial":
            (folder / name).write_text(text)
    if page != "tutorial":
        a_run(folder / "RUN", deadline_s=40.0)


def tagged(language: str, tag: str) -> list[Block]:
    return [
        block
        for page in PAGES
        for block in blocks_of(page)
        if block.language == language and block.tag == tag
    ]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    sandbox(folder, page)
    environ = environ_of(clean_environ())
    script = ""
    for block in blocks_of(page):
        if block.tag.startswith("file="):
            (folder / block.tag.removeprefix("file=")).write_text(block.text)
        elif block.language == "bash" and block.tag == "":
            run_bash(block.text, folder, environ)
        elif block.language == "python" and block.tag == "":
            script += block.text
        else:
            known = {"bash": BASH_TAGS, "python": PYTHON_TAGS, "toml": {"", "site"}, "text": {""}}
            assert block.tag in known.get(block.language, set()), (
                f"no test runs {block.language} {block.tag!r}"
            )
    if script:
        run_python(script, folder, environ)


@pytest.mark.parametrize("block", tagged("toml", "site"), ids=lambda block: block.page)
def test_a_documented_site_is_one(block: Block, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(block.text)
    assert load_site(str(tmp_path / "site.toml"), {}).description


@pytest.mark.parametrize("block", tagged("bash", "live"), ids=lambda block: block.page)
def test_blocks_about_a_live_run_run(block: Block, tmp_path: Path) -> None:
    job = light_job(
        tmp_path, [{"step_s": 0.3}, {"step_s": 0.3}], num_atoms=2, max_iterations=1000, deadline="10m", run_dir=tmp_path / "LIVE"
    )  # fmt: skip
    run = job.start()
    try:
        wait_until((run.folder.trials / "0" / "1" / "rank-0.log").exists, run.told)
        run_bash(block.text, tmp_path, environ_of(clean_environ()))
        assert run.ends() in (0, 75), run.told()
    finally:
        run.process.kill()


@pytest.mark.parametrize("block", tagged("bash", "resume"), ids=lambda block: block.page)
def test_blocks_about_a_suspended_run_run(block: Block, tmp_path: Path) -> None:
    job = light_job(
        tmp_path,
        [{"step_s": 0.3}],
        num_atoms=1,
        max_iterations=8,
        deadline="3m",
        run_dir=tmp_path / "SUSPENDED",
    )
    run = job.start()
    wait_until(lambda: list(run.folder.trials.glob("0/1/checkpoint-*")), run.told)
    run.kill()
    run_bash(block.text, tmp_path, environ_of(clean_environ()))
    assert hpcsched.open_run(job.run_dir).state == "finished"


def test_the_worked_policy_stops_by_the_median(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = tagged("python", "policy")
    assert block.text.count("\n") < 70
    names: dict[str, type] = {"__name__": "median"}  # type: ignore[dict-item]
    exec(compile(block.text, "policy.md", "exec"), names)

    def policy_of(settings: Settings) -> Policy:
        made: Policy = names["Median"](settings)
        return made

    monkeypatch.setattr("hpcsched.core.scheduler.policy_of", policy_of)
    folder = a_run(tmp_path, settings=some_settings(), deadline_s=60.0)
    reasons = [
        action.because
        for record in read_journal(folder)
        if isinstance(record, Step)
        for action in record.actions
    ]
    assert [reason for reason in reasons if "is below the median" in reason]
    scheduler = Scheduler(some_settings())
    for record in read_journal(folder):
        if isinstance(record, Step):
            assert tuple(scheduler.handle(record.event)) == tuple(record.actions), "it replays"


@pytest.fixture(scope="module")
def box() -> Iterator[Cluster]:
    for name in ("slurmdbd", "mariadbd"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name}: a page uses submitit, which asks sacct")
    with slurmbox(
        ACCOUNTING="1", NODES="4", GPUS="2"
    ) as made:  # what is submitted runs beside what comes next
        yield made


@pytest.mark.slurm
@pytest.mark.xdist_group(
    "docs"
)  # a cluster of its own, and minutes of waiting: beside the other clusters' tests
@pytest.mark.parametrize(
    "page",
    [
        # hpcsched.submit's result is waited for in tests/batch, too
        pytest.param(page, marks=pytest.mark.long) if page == "howto_cluster" else page
        for page in sorted({block.page for block in [*tagged("bash", "slurm"), *tagged("python", "slurm")]})
    ],
)
def test_the_blocks_of_a_page_run_on_a_cluster(box: Cluster, page: str, tmp_path: Path) -> None:
    for name, text in files_of("tutorial").items():
        (tmp_path / name).write_text(text.replace('deadline = "60s"', 'deadline = "90s"'))
    environ = environ_of(box.env)
    for block in blocks_of(page):
        if block.tag == "slurm" and block.language == "bash":
            run_bash(block.text, tmp_path, environ)
        elif block.tag == "slurm":
            printed = run_python(block.text, tmp_path, environ)
            assert "learning_rate" in printed
    wait_until(lambda: not box.jobs(), lambda: f"the jobs end: {box.jobs()}", limit_s=240)
    found = list(tmp_path.glob("*RUN/best/best.json"))
    wanted = sum(text.count("RUN") for text in (b.text for b in blocks_of(page) if b.tag == "slurm"))
    assert len(found) == wanted, [file.read_text(errors="replace")[-3000:] for file in tmp_path.glob("*.out")]
