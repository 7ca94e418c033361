"""Warm starts: what may be forked, what a forked rank is like, and what starts cold."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcsched.launch.zygote import Fork, script_of
from hpcsched.launch.zygote_process import ZygoteProcess
from tests.launch.test_supervisor import MEMORY_POLICY

PR_SET_CHILD_SUBREAPER = 36
READY_LIMIT_S = 60.0


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process adopts what its children leave behind, as a supervisor does."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def zygote_with(*modules: str, path: Path | None = None) -> ZygoteProcess:
    environ = dict(os.environ)
    if path is not None:
        environ["PYTHONPATH"] = str(path)
    return ZygoteProcess(modules, environ)


def fork_of(tmp_path: Path, script: str, *args: str, name: str = "rank-0.log", **env: str) -> Fork:
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    return Fork(
        supervisor=os.getpid(),
        argv=(str(file), *args),
        env={"PATH": os.environ["PATH"], **env},
        cwd=str(tmp_path),
        cores=(),
        log_file=str(tmp_path / name),
    )


def run(zygote: ZygoteProcess, fork: Fork) -> int:
    assert zygote.poll_ready(READY_LIMIT_S) is not None
    _, status = os.waitpid(zygote.fork(fork), 0)
    return os.waitstatus_to_exitcode(status)


def test_a_forked_rank_is_a_child_of_its_supervisor_with_its_own_world(
    tmp_path: Path, subreaper: None
) -> None:
    zygote = zygote_with("json")
    fork = fork_of(
        tmp_path,
        """
        import os, sys
        print(__name__, sys.argv[1:], os.environ["RANK"], "HOME" in os.environ, os.getsid(0) == os.getpid())
        print(os.getppid(), "json" in sys.modules, os.getcwd())
        """,
        "--x",
        RANK="3",
    )
    assert run(zygote, fork) == 0
    zygote.close()
    first, second = (tmp_path / "rank-0.log").read_text().splitlines()
    assert first == "__main__ ['--x'] 3 False True"
    assert second == f"{os.getpid()} True {tmp_path}"


def test_a_forked_rank_takes_memory_from_the_numa_nodes_of_its_placement(
    tmp_path: Path, subreaper: None
) -> None:
    zygote = zygote_with("json")
    assert run(zygote, fork_of(tmp_path, MEMORY_POLICY, HPCSCHED_MEMORY_NODES="0")) == 0
    zygote.close()
    told = (tmp_path / "rank-0.log").read_text()
    if told.startswith("-1"):
        pytest.skip("this computer does not let memory policies be read")
    assert told == "0 2 1\n"


def test_exit_codes_and_tracebacks_are_those_of_the_script(tmp_path: Path, subreaper: None) -> None:
    zygote = zygote_with("json")
    assert run(zygote, fork_of(tmp_path, "raise SystemExit(7)")) == 7
    assert run(zygote, fork_of(tmp_path, "raise ValueError('boom')", name="b.log")) == 1
    assert "ValueError: boom" in (tmp_path / "b.log").read_text()
    gone = fork_of(tmp_path, "", name="c.log")
    (tmp_path / "script.py").unlink()
    assert run(zygote, gone) == 2
    zygote.close()


def test_ranks_of_one_zygote_draw_different_random_numbers(tmp_path: Path, subreaper: None) -> None:
    zygote = zygote_with("random", "numpy.random")
    script = "import random, numpy; print(random.random(), numpy.random.rand())"
    for name in ("a.log", "b.log"):
        assert run(zygote, fork_of(tmp_path, script, name=name)) == 0
    zygote.close()
    a, b = ((tmp_path / name).read_text().split() for name in ("a.log", "b.log"))
    assert a[0] != b[0]
    assert a[1] != b[1]


def test_classes_of_the_script_can_be_pickled_and_exit_handlers_run(tmp_path: Path, subreaper: None) -> None:
    zygote = zygote_with("json")
    fork = fork_of(
        tmp_path,
        """
        import atexit, pickle
        class Thing: pass
        pickle.loads(pickle.dumps(Thing()))
        atexit.register(lambda: print("bye"))
        """,
    )
    assert run(zygote, fork) == 0
    zygote.close()
    assert (tmp_path / "rank-0.log").read_text() == "bye\n"


def test_a_module_that_starts_a_thread_makes_it_cold(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    zygote = zygote_with("threads", path=tmp_path)
    ready = zygote.poll_ready(READY_LIMIT_S)
    zygote.close()
    assert ready is not None
    assert ready.cold == "what was preloaded has started 1 threads"


def test_a_module_that_cannot_be_imported_or_ends_the_process_makes_it_cold(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os\nos._exit(9)\n")
    for module, why in (
        ("no_such_module", "no_such_module cannot be imported"),
        ("dies", "ended with code 9"),
    ):
        zygote = zygote_with(module, path=tmp_path)
        ready = zygote.poll_ready(READY_LIMIT_S)
        zygote.close()
        assert ready is not None
        assert ready.cold is not None
        assert why in ready.cold


def test_a_rank_dies_with_its_supervisor(tmp_path: Path) -> None:
    supervisor = os.fork()
    if supervisor == 0:
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        zygote = zygote_with("json")
        zygote.poll_ready(READY_LIMIT_S)
        zygote.fork(fork_of(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)"))
        log = tmp_path / "rank-0.log"
        while not (log.exists() and log.read_text()):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(supervisor, 0)
    rank = int((tmp_path / "rank-0.log").read_text())
    for _ in range(10_000_000):
        if not Path(f"/proc/{rank}").exists() or " Z" in Path(f"/proc/{rank}/stat").read_text():
            return
    pytest.fail(f"rank {rank} lives on")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("python", "train.py", "--x"), ("train.py", "--x")),
        (("python3", "-u", "train.py"), ("train.py",)),
        (("python", "-m", "package.train"), ("-m", "package.train")),
        (("python", "-c", "print()"), None),
        (("python",), None),
        (("bash", "train.sh"), None),
        (("/usr/bin/env", "python", "train.py"), None),
        (("no-such-program", "train.py"), None),
    ],
)
def test_only_scripts_of_this_python_start_warm(
    command: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    assert script_of(command, (), path) == expected


def test_what_is_wrapped_in_a_container_starts_cold() -> None:
    path = str(Path(sys.executable).parent)
    assert script_of(("python", "train.py"), ("apptainer", "exec", "image"), path) is None


def test_variables_of_the_interpreter_work_in_a_forked_rank_as_in_one_that_was_started(
    tmp_path: Path, subreaper: None
) -> None:
    env = {"PYTHONIOENCODING": "ascii:replace", "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "7"}
    script = "import sys; print('\\u00e9', hash('x')); sys.stderr.write('\\u00e9 ' + sys.path[0])"
    zygote = ZygoteProcess(("json",), os.environ, env)
    fork = fork_of(tmp_path, script, **env)
    assert run(zygote, fork) == 0
    zygote.close()
    command = [sys.executable, fork.argv[0]]
    started = subprocess.run(
        command, check=True, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert (tmp_path / "rank-0.log").read_bytes() == started.stdout
