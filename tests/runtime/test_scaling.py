"""Learning rate and batch size after a resize: the numbers of the papers, and that nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpcsched.errors import TrialError
from hpcsched.runtime.scaling import Batch, LearningRate, Ramp, Scaling, ScalingRule, rasda


def sgd(lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def rates(ranks: int, *, epochs: int, before: dict[str, Any] | None = None, **rule: Any) -> list[float]:
    """Learning rate (0.1 on one rank) of each epoch."""
    scaling = Scaling(sgd(), batch_size=8, num_ranks=ranks, rule=ScalingRule(**rule))
    if before is not None:
        scaling.load_state_dict(before)
    seen = []
    for _ in range(epochs):
        seen += scaling.learning_rates
        scaling.step()
    return seen


def state_of(ranks: int, **rule: Any) -> dict[str, Any]:
    """Of a run on so many ranks whose ramp is long over."""
    scaling = Scaling(sgd(), batch_size=8, num_ranks=ranks, rule=ScalingRule(**rule))
    for _ in range(60):
        scaling.step()
    return scaling.state_dict()


def test_t22_the_papers_ramp() -> None:
    expected = [0.11, 0.121, 0.1331, 0.14641, 0.161051, 0.1771561, 0.19487171, 0.2, 0.2]
    assert rates(4, epochs=9, before=state_of(1)) == pytest.approx(expected)


@pytest.mark.parametrize(("ranks", "epochs"), [(2, 4), (4, 8), (8, 11), (16, 15)])
def test_t22_epochs_until_the_target(ranks: int, epochs: int) -> None:
    seen = rates(ranks, epochs=epochs, before=state_of(1))
    assert seen[-1] == 0.1 * ranks**0.5
    assert seen[-2] < 0.1 * ranks**0.5


def test_t22_the_ramp_of_hyperscheds_code() -> None:
    four = rates(4, epochs=11, before=state_of(1), ramp=Ramp.ADDITIVE)
    assert four == pytest.approx([0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18, 0.19, 0.20, 0.20])
    two = rates(2, epochs=6, before=state_of(1), ramp=Ramp.ADDITIVE)
    assert two == pytest.approx([0.10828, 0.11657, 0.12485, 0.13314, 0.14142, 0.14142], abs=5e-6)
    assert two[4] == two[5] == 0.1 * 2**0.5


def test_t22_linear_rule_of_rasda() -> None:
    assert [rasda(sgd()).target(ranks) for ranks in (1, 4, 64)] == [1.0, 4.0, 64.0]
    adam = torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    assert [rasda(adam).target(ranks) for ranks in (1, 4, 64)] == [1.0, 2.0, 8.0]
    assert rasda(sgd()).global_batch_size(128, 64) == 8192, "the batch of a rank stays"


def test_rasdas_warm_up_after_a_resize_begins_at_half_and_ends_at_the_target() -> None:
    rule = {"learning_rate": LearningRate.LINEAR, "ramp": Ramp.HALF}
    before = state_of(2, **rule)
    assert before["factor"] == 2.0
    assert rates(8, epochs=4, before=before, **rule) == pytest.approx([0.4, 0.6, 0.8, 0.8])
    assert rates(1, epochs=2, before=before, **rule) == pytest.approx([0.1, 0.1])


def test_a_smaller_trial_ramps_down() -> None:
    seen = rates(1, epochs=9, before=state_of(4))
    assert seen[0] == pytest.approx(0.2 / 1.1)
    assert seen[6] > 0.1 == seen[7] == seen[8]


def test_a_global_batch_scales_nothing() -> None:
    scaling = Scaling(sgd(), batch_size=96, num_ranks=8, rule=ScalingRule(batch=Batch.GLOBAL))
    assert (scaling.global_batch_size, scaling.factor, scaling.target) == (96, 1.0, 1.0)
    assert Scaling(sgd(), batch_size=96, num_ranks=8).global_batch_size == 768


@given(
    ranks=st.lists(st.integers(1, 64), min_size=1, max_size=6),
    epochs=st.integers(0, 12),
    rate=st.sampled_from(LearningRate),
)
def test_whatever_the_resizes_the_factor_moves_by_a_tenth_an_epoch_and_stays_between_old_and_new(
    ranks: list[int], epochs: int, rate: LearningRate
) -> None:
    rule = ScalingRule(learning_rate=rate)
    state = None
    last = 1.0
    for num in ranks:
        scaling = Scaling(sgd(), batch_size=8, num_ranks=num, rule=rule)
        if state is not None:
            scaling.load_state_dict(state)
        for _ in range(epochs):
            low, high = sorted((last, rule.target(num)))
            assert low <= scaling.factor <= high
            assert last / 1.1000001 <= scaling.factor <= last * 1.1000001
            last = scaling.factor
            scaling.step()
        state = scaling.state_dict()


def test_a_resize_in_the_middle_of_an_epoch_does_not_move_twice() -> None:
    one = Scaling(sgd(), batch_size=8, num_ranks=4)
    assert one.factor == pytest.approx(1.1)
    two = Scaling(sgd(), batch_size=8, num_ranks=16)
    two.load_state_dict(one.state_dict())
    assert two.factor == one.factor
    two.step()
    assert two.factor == pytest.approx(1.21)


def test_a_pause_changes_nothing() -> None:
    going = Scaling(sgd(), batch_size=8, num_ranks=4)
    going.step()
    resumed = Scaling(sgd(), batch_size=8, num_ranks=4)
    resumed.load_state_dict(going.state_dict())
    for _ in range(10):
        assert resumed.state_dict() == going.state_dict()
        going.step()
        resumed.step()


def test_the_optimizer_steps_with_the_scaled_rate_and_keeps_the_plain_one() -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([{"params": [weight]}], lr=0.5)
    scaling = Scaling(optimizer, batch_size=8, num_ranks=4, rule=ScalingRule(ramp=Ramp.NONE))
    weight.grad = torch.ones(2)
    optimizer.step()
    assert weight.tolist() == [-1.0, -1.0], "0.5 times sqrt(4)"
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert scaling.learning_rates == [1.0]


def test_schedules_that_compute_a_rate_from_the_last_one_are_not_disturbed() -> None:
    """CosineAnnealingLR and ExponentialLR read the group's rate; they must find their own."""
    seen = []
    for ranks in (1, 4):
        optimizer = sgd()
        optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
        scaling = Scaling(
            optimizer, batch_size=8, num_ranks=ranks, rule=ScalingRule(ramp=Ramp.NONE), schedule=schedule
        )
        rate = []
        for _ in range(8):
            optimizer.step()
            rate += scaling.learning_rates
            scaling.step()
        seen.append(rate)
    assert seen[1] == pytest.approx([2 * rate for rate in seen[0]])
    assert seen[0][-1] < seen[0][0]


def test_a_step_that_raised_does_not_scale_twice() -> None:
    class Broken(torch.optim.SGD):
        broken = True

        def step(self, closure: Any = None) -> Any:
            if self.broken:
                raise RuntimeError("out of memory")
            return super().step(closure)

    weight = nn.Parameter(torch.zeros(1))
    optimizer = Broken([weight], lr=0.5)
    Scaling(optimizer, batch_size=8, num_ranks=4, rule=ScalingRule(ramp=Ramp.NONE))
    weight.grad = torch.ones(1)
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    optimizer.broken = False
    optimizer.step()
    assert weight.item() == -1.0
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_mistakes_are_named() -> None:
    with pytest.raises(TrialError, match="cannot be shared by 4 ranks"):
        Scaling(sgd(), batch_size=2, num_ranks=4, rule=ScalingRule(batch=Batch.GLOBAL))
    with pytest.raises(TrialError, match="growth=0"):
        ScalingRule(growth=0)
    with pytest.raises(TrialError, match="schedule"):
        Scaling(sgd(), batch_size=2, num_ranks=1).load_state_dict(
            Scaling(
                sgd(), batch_size=2, num_ranks=1, schedule=torch.optim.lr_scheduler.StepLR(sgd(), 1)
            ).state_dict()
        )
