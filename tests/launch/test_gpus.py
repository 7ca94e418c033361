"""What a supervisor does about the GPUs that NVML shows it; NVML itself is a stand-in."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcsched.launch.devices import MismatchError
from hpcsched.launch.gpus import MUCH_MB, Gpu, Stranger, check_gpus
from hpcsched.launch.processes import marked
from hpcsched.launchspec import LaunchNode
from hpcsched.wire import RanksStarted, SupervisorGoodbye, SupervisorHello, SupervisorRefuses
from tests.launch.test_supervisor import Running
from tests.support.dialogue import FakeDriver, driver_in

FAKE = Path(__file__).parent.parent / "fakes" / "nvml"


def check(*gpus: Gpu, **options: Any) -> tuple[str, ...]:
    """Of devices that stay as they are."""
    names = [str(number) for number in range(len(gpus))]
    return check_gpus("n1", names, names, look=lambda _: gpus, sleep=lambda _: None, **options)


def test_free_devices_that_are_the_promised_ones_are_named() -> None:
    assert check(Gpu("0", "GPU-a", 3, ()), Gpu("1", "GPU-b", 3, ()), promised=("GPU-a", "GPU-b")) == (
        "GPU-a",
        "GPU-b",
    )


@pytest.mark.parametrize("seen", [None, (Gpu("0", None), Gpu("1", None))])
def test_what_nvml_does_not_tell_stops_nothing(seen: tuple[Gpu, ...] | None) -> None:
    names = ["0", "1"]
    assert check_gpus("n1", names, names, promised=("GPU-a", "GPU-b"), look=lambda _: seen) == ()


def test_who_uses_a_promised_gpu_is_named() -> None:
    other = Stranger(4711, "python of alice", 1234)
    with pytest.raises(
        MismatchError,
        match=r"n1: GPU 1 \(GPU-b\): process 4711 \(python of alice\) holds 1234 MiB",
    ) as raised:
        check(Gpu("0", "GPU-a", 3, ()), Gpu("1", "GPU-b", 1237, (other,)))
    assert raised.value.gpus == ("1",)
    assert check(Gpu("0", "GPU-a", 1237, (other,)), ours={4711}) == ("GPU-a",)
    assert check(Gpu("0", "GPU-a", 40, (Stranger(9, "nvidia-cuda-mps-server of root", 30),))) == ("GPU-a",)


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-server", "nvidia-cuda-mps-control"])
def test_a_server_of_the_node_is_no_stranger_though_the_kernel_cuts_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / name
    program.symlink_to(shutil.which("cat") or "/bin/cat")
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], executable=program, stdin=pipe, stdout=pipe, bufsize=0) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(b"x")
        server.stdout.read(1)  # it runs, so its name is its own
        state = {"devices": [{"uuid": "GPU-a", "used_mb": 30, "processes": [[server.pid, 27]]}]}
        (tmp_path / "nvml.json").write_text(json.dumps(state))
        monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))
        try:
            assert Path(f"/proc/{server.pid}/comm").read_text() == "nvidia-cuda-mps\n"
            assert check_gpus("n1", ["0"], ["0"], sleep=lambda _: None) == ("GPU-a",)
        finally:
            server.kill()
            monkeypatch.delitem(sys.modules, "pynvml", raising=False)


def test_the_memory_of_a_process_that_has_just_ended_is_waited_for() -> None:
    states = [(Gpu("0", "GPU-a", 900, (Stranger(5, "python", 900),)),)] * 3 + [(Gpu("0", "GPU-a", 3, ()),)]
    naps: list[float] = []
    found = check_gpus("n1", ["0"], ["0"], look=lambda _: states.pop(0), sleep=naps.append)
    assert (found, len(naps), states) == (("GPU-a",), 3, [])


def test_where_processes_cannot_be_listed_much_memory_in_use_tells_it() -> None:
    assert check(Gpu("0", "GPU-a", MUCH_MB, None)) == ("GPU-a",)
    with pytest.raises(MismatchError, match="1025 MiB are in use already"):
        check(Gpu("0", "GPU-a", MUCH_MB + 1, None))


def test_two_names_of_one_device_and_another_device_than_promised_are_mismatches() -> None:
    with pytest.raises(MismatchError, match="GPUs 0 and 1 are one and the same device, GPU-a") as raised:
        check(Gpu("0", "GPU-a", 3, ()), Gpu("1", "GPU-a", 3, ()))
    assert raised.value.gpus == ("0", "1")
    with pytest.raises(
        MismatchError, match="GPU 1 was GPU-b when the machine was read and is GPU-c now"
    ) as raised:
        check(Gpu("0", "GPU-a", 3, ()), Gpu("1", "GPU-c", 3, ()), promised=("GPU-a", "GPU-b"))
    assert raised.value.gpus == ("1",)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the stand-in of NVML, in this process, show these devices."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "nvml.json"))

    def show(*devices: dict[str, Any]) -> None:
        (tmp_path / "nvml.json").write_text(json.dumps({"devices": devices}))

    return show


LOST, RESET, NOT_SUPPORTED = 15, 16, 3


@pytest.mark.parametrize("names", [("0", "1"), ("GPU-a", "GPU-b")])
@pytest.mark.parametrize(("error", "what"), [(LOST, "fallen off the bus"), (RESET, "has to be reset")])
def test_a_gpu_that_is_lost_or_to_be_reset_is_a_mismatch_that_names_it_alone(
    machine: Callable[..., None], names: tuple[str, ...], error: int, what: str
) -> None:
    machine({"uuid": "GPU-a"}, {"uuid": "GPU-b", "error": error})
    promised = ("GPU-a", "GPU-b")
    with pytest.raises(MismatchError, match=rf"^n1: GPU 3 .*{what}") as raised:
        check_gpus("n1", ["2", "3"], names, promised=promised)
    assert raised.value.gpus == ("3",)
    assert check_gpus("n1", ["2"], names[:1], promised=promised[:1]) == ("GPU-a",)


def test_a_gpu_that_is_lost_while_it_is_looked_at_is_one_too(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine({"uuid": "GPU-a"})
    import pynvml

    def lost(_: Any) -> None:
        raise pynvml.NVMLError(LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lost)
    with pytest.raises(MismatchError, match=r"GPU 0 \(GPU-a\) has fallen off the bus"):
        check_gpus("n1", ["0"], ["0"])


def test_a_uuid_that_nvml_does_not_know_is_a_mismatch_where_the_probe_has_seen_it(
    machine: Callable[..., None],
) -> None:
    machine({"uuid": "GPU-a"})
    with pytest.raises(MismatchError, match=r"GPU 1 is not there any more") as raised:
        check_gpus("n1", ["0", "1"], ["GPU-a", "GPU-b"], promised=("GPU-a", "GPU-b"))
    assert raised.value.gpus == ("1",)
    shortened = check_gpus("n1", ["0"], ["GPU"], promised=("GPU-a",))
    assert shortened == (), "CUDA takes shortened UUIDs, and NVML does not"


def test_other_errors_of_nvml_stop_nothing_and_hide_no_other_device(machine: Callable[..., None]) -> None:
    machine({"uuid": "GPU-a", "error": NOT_SUPPORTED}, {"uuid": "GPU-b", "error": LOST})
    assert check_gpus("n1", ["0"], ["0"], promised=("GPU-a",)) == ()
    with pytest.raises(MismatchError, match="GPU 1 has fallen off the bus"):
        check_gpus("n1", ["0", "1"], ["0", "1"])
    assert check_gpus("n1", ["0"], ["MIG-111"]) == (), "of instances NVML cannot tell who is lost"


# ---- in a real supervisor


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
    for left in marked({"HPCSCHED_RUN_DIR": str(driver.folder.root)}):
        os.kill(left.pid, signal.SIGKILL)


def launched(
    driver: FakeDriver, running: Running, state: dict[str, Any], *, visible: str = "0,1", **node: Any
) -> None:
    file = driver.folder.root / "nvml.json"
    file.write_text(json.dumps(state))
    gpus = ("0", "1")
    cores = tuple(sorted(os.sched_getaffinity(0)))
    spec = driver.spec(
        "print('trained')",
        nodes=(LaunchNode("here", gpus, cores, None, 0, gpus, **node),),
        invented_gpus=False,
    )
    env = {"CUDA_VISIBLE_DEVICES": visible, "PYTHONPATH": str(FAKE), "FAKE_NVML": str(file)}
    running.start(driver, spec, env=env)


TWO = [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]


@pytest.mark.parametrize(
    ("state", "uuids"),
    [
        ({"devices": TWO}, ("GPU-a", "GPU-b")),
        ({"devices": TWO, "broken": "library"}, ()),
        ({"devices": TWO[:1]}, ()),
        ({"devices": TWO, "broken": "processes"}, ("GPU-a", "GPU-b")),
    ],
)
def test_ranks_start_on_free_gpus_and_where_nvml_does_not_work(
    driver: FakeDriver, running: Running, state: dict[str, Any], uuids: tuple[str, ...]
) -> None:
    launched(driver, running, state)
    assert driver.one(SupervisorHello).uuids == uuids
    driver.one(RanksStarted)
    assert driver.one(SupervisorGoodbye).exits == {0: 0, 1: 0}


MIG = [{"uuid": "MIG-111"}, {"uuid": "MIG-222"}]


def test_mig_instances_are_looked_at_by_their_uuids(driver: FakeDriver, running: Running) -> None:
    launched(driver, running, {"devices": MIG}, visible="MIG-222,MIG-111", uuids=("MIG-222", "MIG-111"))
    hello = driver.one(SupervisorHello)
    assert hello.devices == hello.uuids == ("MIG-222", "MIG-111")
    assert driver.one(SupervisorGoodbye).exits == {0: 0, 1: 0}


def test_a_stranger_on_a_mig_instance_is_named_with_it(driver: FakeDriver, running: Running) -> None:
    taken = MIG[1] | {"processes": [[os.getpid(), 70]]}
    launched(driver, running, {"devices": [MIG[0], taken]}, visible="MIG-222,MIG-111")
    refusal = driver.one(SupervisorRefuses)
    assert refusal.gpus == ("0",)
    assert refusal.why.startswith(f"here: GPU 0 (MIG-222): process {os.getpid()} (")


@pytest.mark.parametrize(
    ("state", "node", "gpus", "why"),
    [
        (
            {"devices": [TWO[0], TWO[1] | {"processes": [[os.getpid(), 500]]}]},
            {},
            ("1",),
            f"process {os.getpid()} (",
        ),
        ({"devices": [TWO[0], TWO[0]]}, {}, ("0", "1"), "one and the same device"),
        ({"devices": TWO}, {"uuids": ("GPU-a", "GPU-z")}, ("1",), "was GPU-z"),
    ],
    ids=["a stranger", "one device twice", "another device"],  # the same in every worker
)
def test_a_mismatch_is_refused_before_any_rank_starts(
    driver: FakeDriver,
    running: Running,
    state: dict[str, Any],
    node: dict[str, Any],
    gpus: tuple[str, ...],
    why: str,
) -> None:
    launched(driver, running, state, **node)
    refusal = driver.one(SupervisorRefuses)
    assert (refusal.problem, refusal.gpus) == ("mismatch", gpus)
    assert why in refusal.why
    assert refusal.why.startswith("here: GPU")
    assert not driver.all_of(RanksStarted)
