"""Where the time of an iteration goes, by a clock of the test's own."""

from __future__ import annotations

import pytest
import torch

from hpcsched.progress import Board, Phase, Slot
from hpcsched.runtime.meter import Meter
from hpcsched.runtime.sampler import ElasticSampler
from hpcsched.runtime.tracked import Tracked
from tests.support.groups import groups_of_one


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_shares_are_of_the_iteration_and_count_anew_after_each_report() -> None:
    clock = Clock()
    meter = Meter(Slot(None, 0), clock=clock)
    sampler = ElasticSampler(40, global_batch_size=10, meter=meter)

    def loader() -> object:
        for batch in sampler:
            clock.now += 0.5  # the disk
            yield batch

    meter.began(1)
    for _ in sampler.over(loader()):  # type: ignore[call-overload]
        clock.now += 1.5  # training
    assert meter.take(8.0, None) == pytest.approx({"samples_per_s": 5.0, "data_wait": 0.25, "overhead": 0.0})
    meter.at_boundary()
    clock.now += 2.0  # a save
    meter.began(2)
    clock.now += 6.0
    assert meter.take(6.0, 0.125) == pytest.approx({"communication": 0.125, "overhead": 0.25})


def test_the_sampler_says_when_it_waits_and_when_the_script_computes() -> None:
    board = Board(1)
    meter = Meter(Slot(board.path, 0))
    sampler = ElasticSampler(20, global_batch_size=10, meter=meter)
    phases = []

    def loader() -> object:
        for batch in sampler:
            mark = board.mark(0)
            assert mark is not None
            phases.append(mark.phase)
            yield batch

    for _ in sampler.over(loader()):  # type: ignore[call-overload]
        mark = board.mark(0)
        assert mark is not None
        phases.append(mark.phase)
    assert phases == [Phase.DATA, Phase.COMPUTE] * 2
    board.close()


def test_ddp_times_its_own_communication() -> None:
    groups_of_one()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    tracked = Tracked()
    assert tracked.communication_share() is None
    tracked.add({"model": net})
    assert tracked.communication_share() is None, "no step yet"
    for _ in range(4):
        net(torch.ones(2, 4)).sum().backward()
    share = tracked.communication_share()
    assert share is not None
    assert 0.0 <= share < 1.0
