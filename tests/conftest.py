"""Options of the test run: full counts, and proof that the real cluster was used."""

from __future__ import annotations

import hypothesis
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="full counts (tests marked `long` run, others use more cases)"
    )
    parser.addoption(
        "--alone",
        choices=["only", "none"],
        help="only the tests that measure on an idle machine (marked `alone`), or all others",
    )
    parser.addoption(
        "--need-slurm",
        action="store_true",
        help="fail when no test marked `slurm` has run on the real cluster",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RAN] = 0
    # No limit of time for an example: the machine may be busy. Tests that name their own count keep it.
    hypothesis.settings.register_profile("here", deadline=None)
    hypothesis.settings.register_profile("long", deadline=None, max_examples=1000)
    hypothesis.settings.load_profile("long" if config.getoption("--long") else "here")
    config.pluginmanager.register(_Count(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slurm") and not item.get_closest_marker("xdist_group"):
            # With several workers (tests/run.sh) one has the clusters, which mostly wait; the others have the rest.
            item.add_marker(pytest.mark.xdist_group("slurm"))
    if wanted := config.getoption("--alone"):
        left = [item for item in items if bool(item.get_closest_marker("alone")) != (wanted == "only")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="full counts: only with --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def long_run(request: pytest.FixtureRequest) -> bool:
    """Whether full counts are wanted."""
    return bool(request.config.getoption("--long"))


_RAN: pytest.StashKey[int] = pytest.StashKey()


class _Count:
    """Counts in the process that has the whole run, also when workers run the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped and "slurm" in report.keywords:
            self._config.stash[_RAN] += 1


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    is_worker = hasattr(session.config, "workerinput")
    needs = session.config.getoption("--need-slurm") and not is_worker
    if needs and not session.config.stash[_RAN] and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ran = config.stash[_RAN]
    terminalreporter.write_line(f"tests on the real Slurm cluster: {ran} ran")
    if config.getoption("--need-slurm") and not ran:
        terminalreporter.write_line("FAILED: --need-slurm, and none of them ran", red=True)
