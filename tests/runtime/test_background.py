"""Checkpoints that are written while training goes on: in this process, the disk held back where a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.errors import CheckpointError
from hpcsched.launchspec import LaunchSpec
from hpcsched.runfolder import RunFolder
from hpcsched.runtime import checkpoint
from hpcsched.runtime import trial as trial_module
from hpcsched.runtime.budget import SaveBudget
from hpcsched.runtime.memory import available_bytes
from hpcsched.runtime.saver import Saver
from hpcsched.runtime.snapshot import Buffers, deal_out, expected_bytes, num_bytes_to_copy, take
from hpcsched.runtime.tracked import Tracked
from hpcsched.wire import CheckpointTrouble, Leaving, SavedCheckpoint
from tests.support.groups import HeardLine, Objects, groups_of_one, launch, make_trial

LIMIT_S = 60.0


class Disk:
    """In place of `checkpoint.save`: the real one, once the disk is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.go.set()
        self.problem = ""
        self.begun: list[int] = []
        real: Callable[..., Any] = checkpoint.save

        def save(folder: Path, snapshot: Any, **facts: Any) -> Any:
            self.begun.append(facts["training_iteration"])
            assert self.go.wait(LIMIT_S)
            if self.problem:
                raise CheckpointError(self.problem)
            return real(folder, snapshot, **facts)

        monkeypatch.setattr(checkpoint, "save", save)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def always(tmp_path: Path, **changes: Any) -> LaunchSpec:
    """A save is due after every report."""
    return launch(tmp_path, checkpoint_budget=1e9, **changes)


def restored(spec: LaunchSpec, iteration: int) -> list[Any]:
    folder = RunFolder(Path(spec.run_dir)).checkpoint(spec.trial_id, spec.incarnation, iteration)
    fresh = Objects(seed=1, steps=0)
    group = groups_of_one().saves
    manifest = checkpoint.open_checkpoint(folder, config=spec.config, group=group)
    checkpoint.restore(folder, manifest, fresh.tracked, fresh.named, group=group)
    return fresh.numbers()


def test_what_is_saved_is_the_state_of_its_boundary_though_training_went_on(
    tmp_path: Path, disk: Disk
) -> None:
    line, spec, objects = HeardLine(), always(tmp_path), Objects()
    trial = make_trial(spec, line)
    trial.track(**objects.named)
    numbers = {}
    disk.go.clear()
    for iteration in trial:
        objects.train()
        numbers[iteration] = objects.numbers()
        trial.report(accuracy=iteration)
        if iteration <= 3:
            assert line.of(SavedCheckpoint) == [], "the disk has not answered"
        if iteration == 3:
            assert disk.begun == [1], "one at a time"
            disk.go.set()
            trial._wait_for_save()
    (first, *_, last) = line.of(SavedCheckpoint)
    assert (first.training_iteration, last.training_iteration) == (1, 4)
    assert restored(spec, 1) == numbers[1] != numbers[3]
    assert restored(spec, 4) == numbers[4]
    assert first.blocked_s is not None
    assert first.blocked_s <= first.save_s
    assert last.blocked_s is None, "training had to wait for the last one"


def test_who_is_asked_to_leave_waits_for_the_save_and_then_saves_where_it_is(
    tmp_path: Path, disk: Disk
) -> None:
    line, spec, objects = HeardLine(leave_after=3), always(tmp_path), Objects()
    trial = make_trial(spec, line)
    trial.track(**objects.named)
    disk.go.clear()
    for iteration in trial:
        objects.train()
        trial.report(accuracy=iteration)
        if iteration == 3:
            threading.Timer(0.05, disk.go.set).start()
    assert [message.training_iteration for message in line.of(SavedCheckpoint)] == [1, 3]
    assert isinstance(line.said[-1], Leaving)
    assert restored(spec, 3) == objects.numbers()


def test_who_breaks_out_of_the_loop_ends_its_save_before_it_meets_the_others(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They meet in the group of the saves, in which the thread must not be meanwhile."""
    trial = make_trial(always(tmp_path), HeardLine())
    trial.track(**Objects().named)
    was_saving: list[bool] = []
    monkeypatch.setattr(
        "torch.distributed.monitored_barrier", lambda *_, **__: was_saving.append(trial._is_saving)
    )
    disk.go.clear()
    iterations = iter(trial)
    next(iterations)
    trial.report(accuracy=1)
    next(iterations)
    assert trial._is_saving
    threading.Timer(0.05, disk.go.set).start()
    trial._wait_for_all(1.0)
    assert was_saving == [False]


def test_a_save_of_the_last_boundary_is_not_made_twice(tmp_path: Path, disk: Disk) -> None:
    line, spec = HeardLine(leave_after=2), always(tmp_path)
    trial = make_trial(spec, line)
    trial.track(**Objects().named)
    for iteration in trial:
        line.leave_after = None if iteration < 2 else 99
        trial.report(accuracy=iteration)
        if iteration == 3:
            line.leave_after = 0
            trial._wait_for_save()
    made = [message.training_iteration for message in line.of(SavedCheckpoint)]
    assert made == sorted(set(made))
    assert made[-1] == 3


def test_one_that_fails_is_told_and_training_goes_on(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    line, spec = HeardLine(), always(tmp_path, max_iterations=6)
    trial = make_trial(spec, line)
    trial.track(**Objects().named)
    for iteration in trial:
        trial._wait_for_save()  # of the boundary before
        disk.problem = "No space left on device" if iteration <= 3 else ""
        trial.report(accuracy=iteration)
    assert [trouble.training_iteration for trouble in line.of(CheckpointTrouble)] == [1, 2, 3]
    assert all("No space left" in trouble.why for trouble in line.of(CheckpointTrouble))
    assert [saved.training_iteration for saved in line.of(SavedCheckpoint)] == [4, 5, 6]
    said = [record.message for record in caplog.records if record.name.startswith("hpcsched")]
    assert len(said) == 2, "the first failure, and that it works again"
    assert "iteration 1 failed" in said[0]
    assert "iteration 4 is complete, after 3 that failed" in said[1]


def test_whatever_goes_wrong_in_the_thread_is_an_outcome() -> None:
    heard: list[Any] = []
    saver = Saver(torch.device("cpu"), heard.append)

    def breaks() -> Any:
        raise MemoryError("no more")

    saver.begin(7, breaks)
    saver.wait()
    outcome = saver.take_ended()
    assert outcome is not None
    assert (outcome.training_iteration, outcome.problem) == (7, "MemoryError: no more")
    assert heard == [outcome]
    assert saver.take_ended() is None


def test_a_rank_without_memory_for_its_copies_fails_the_save_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any, buffers: Buffers | None = None, **facts: Any) -> Any:
        if buffers is not None:
            raise RuntimeError("cannot allocate memory")
        return take(*_, **facts)

    monkeypatch.setattr(trial_module, "take", no_memory)
    line, spec = HeardLine(), always(tmp_path, max_iterations=2)
    trial = make_trial(spec, line)
    trial.track(**Objects().named)
    for iteration in trial:
        trial.report(accuracy=iteration)
    (trouble,) = line.of(CheckpointTrouble)
    assert "cannot allocate memory" in trouble.why
    assert [saved.training_iteration for saved in line.of(SavedCheckpoint)] == [2]


@pytest.mark.parametrize("how", ["off", "no room"])
def test_where_it_is_not_safe_or_not_wanted_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "no room":
        monkeypatch.setattr(trial_module, "available_bytes", lambda: 100)
    line = HeardLine()
    trial = make_trial(always(tmp_path, checkpoint_background=how != "off"), line)
    trial.track(**Objects().named)
    for iteration in trial:
        trial.report(accuracy=iteration)
    assert [saved.training_iteration for saved in line.of(SavedCheckpoint)] == [1, 2, 3, 4]
    assert all(saved.blocked_s is None for saved in line.of(SavedCheckpoint))
    assert ("training waits for each checkpoint" in caplog.text) == (how == "no room")


# ---- copies


def test_copies_are_made_in_the_same_memory_again() -> None:
    objects, buffers = Objects(), Buffers()
    first = take(objects.tracked, rank=0, num_ranks=1, buffers=buffers)
    places = {key: tensor.data_ptr() for key, tensor in first.tensors.items()}
    before = {key: tensor.clone() for key, tensor in first.tensors.items()}
    objects.train()
    assert all(torch.equal(first.tensors[key], before[key]) for key in before)
    second = take(objects.tracked, rank=0, num_ranks=1, buffers=buffers)
    assert {key: tensor.data_ptr() for key, tensor in second.tensors.items()} == places
    assert not torch.equal(second.tensors["model/weight"], before["model/weight"])


def test_weights_that_are_one_are_copied_once() -> None:
    first, second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    net = torch.nn.Sequential(first, second)
    tracked = Tracked()
    tracked.add({"model": net})
    snapshot = take(tracked, rank=0, num_ranks=1, buffers=Buffers())
    one, other = snapshot.tensors["model/0.weight"], snapshot.tensors["model/1.weight"]
    assert one.data_ptr() == other.data_ptr() != first.weight.data_ptr()


def test_rank_0_copies_the_model_for_its_plain_file_and_each_rank_what_it_writes() -> None:
    objects = Objects()
    parts = [take(objects.tracked, rank=rank, num_ranks=3, buffers=Buffers()) for rank in range(3)]
    keys = [key for part in parts for key in part.tensors]
    whole = take(objects.tracked, rank=0, num_ranks=1)
    assert sorted(keys) == sorted(whole.tensors), "each by one rank"
    assert len({part.deal for part in parts}) == 1
    assert parts[1].plain is None
    plain = parts[0].plain
    assert plain is not None
    assert all(torch.equal(plain[name], value) for name, value in objects.net.state_dict().items())
    objects.train()
    assert not torch.equal(plain["weight"], objects.net.weight), "a copy, not the live one"


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_what_rank_0_will_write_is_about_known_before_training(num_ranks: int) -> None:
    objects = Objects(features=200, steps=0)
    told = expected_bytes(objects.tracked, num_ranks=num_ranks)
    objects.train()
    written = take(objects.tracked, rank=0, num_ranks=num_ranks)
    assert written.plain is not None
    actual = sum(
        tensor.numel() * tensor.element_size()
        for tensor in (*written.tensors.values(), *written.plain.values())
    )
    assert told == pytest.approx(actual, rel=0.4)  # tensors are dealt out whole


def test_page_locked_copies_count_as_the_powers_of_two_that_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = torch.nn.Linear(33, 1, bias=False)  # 132 bytes
    net.register_buffer("whole", torch.zeros(16))  # 64 bytes
    net.register_buffer("none", torch.zeros(0))
    tracked = Tracked()
    tracked.add({"model": net})
    on_cpu = num_bytes_to_copy(tracked, num_ranks=1)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)  # as far as is looked at here
    assert (on_cpu, num_bytes_to_copy(tracked, num_ranks=1)) == (2 * (132 + 64), 2 * (256 + 64))


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**9), max_size=30),
    st.integers(1, 9),
    st.integers(0, 10**9),
)
def test_a_deal_leaves_nothing_out_and_is_fair(sizes: dict[str, int], num_ranks: int, load: int) -> None:
    dealt = deal_out(sizes, num_ranks, load)
    assert dealt.keys() == sizes.keys()
    loads = [load if rank == 0 else 0 for rank in range(num_ranks)]
    for key, rank in dealt.items():
        loads[rank] += sizes[key]
    others = loads[1:] if load and num_ranks > 1 else loads
    assert max(others) - min(others) <= max(sizes.values(), default=0)
    assert dealt == deal_out(dict(reversed(sizes.items())), num_ranks, load), "whatever the order"


# ---- when, and whether there is room


def test_a_save_in_the_background_is_due_by_what_training_waits_and_how_long_it_writes() -> None:
    budget = SaveBudget(share=0.05)
    budget.saved(10.0, blocked_s=0.1)
    budget.trained_s = 39.0
    assert not budget.is_due(0), "it would be writing more than a quarter of the time"
    budget.trained_s = 41.0
    assert budget.is_due(0)
    budget.saved(10.0, blocked_s=3.0)
    assert not budget.is_due(0), "training would wait more than 5 %"
    budget.saved(10.0)
    assert not budget.is_due(0)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroups.mkdir()
    (proc / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    8000 kB\n")
    yield proc, cgroups


def test_what_is_free_is_the_least_of_host_and_cgroups(host: tuple[Path, Path]) -> None:
    proc, cgroups = host
    assert available_bytes(proc=proc, cgroups=cgroups) == 8000 * 1024
    (proc / "self/cgroup").write_text("0::/slurm/job_1\n")
    job = cgroups / "slurm/job_1"
    job.mkdir(parents=True)
    for folder, limit in ((job, "max"), (job.parent, "5000000")):
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text("4000000\n")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    assert available_bytes(proc=proc, cgroups=cgroups) == 2_000_000, (
        "the step above limits; cache can be dropped"
    )
    (job / "memory.max").write_text("3500000\n")
    assert available_bytes(proc=proc, cgroups=cgroups) == 500_000


def test_the_older_cgroups_are_read_too(host: tuple[Path, Path]) -> None:
    proc, cgroups = host
    (proc / "self/cgroup").write_text("5:cpu:/x\n4:memory,hugetlb:/job\n")
    folder = cgroups / "memory/job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("400\n")
    (folder / "memory.stat").write_text("total_inactive_file 100\n")
    assert available_bytes(proc=proc, cgroups=cgroups) == 700


def test_nothing_is_known_where_nothing_can_be_read(tmp_path: Path) -> None:
    assert available_bytes(proc=tmp_path, cgroups=tmp_path) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: copies from its memory")
def test_a_state_on_a_gpu_is_copied_into_locked_memory() -> None:
    net = torch.nn.Linear(1000, 1000, device="cuda")
    sgd = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
    net(torch.ones(8, 1000, device="cuda")).sum().backward()
    sgd.step()
    tracked = Tracked()
    tracked.add({"model": net, "optimizer": sgd})
    snapshot = take(tracked, rank=0, num_ranks=1, buffers=Buffers())
    copied = snapshot.tensors["model/weight"]
    assert copied.device.type == "cpu"
    assert copied.is_pinned()
    before = net.weight.detach().cpu().clone()
    sgd.step()
    assert torch.equal(copied, before)
    assert not torch.equal(copied, net.weight.detach().cpu())
