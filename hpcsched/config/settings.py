"""From the experiment file to what the core is told."""

from __future__ import annotations

from hpcsched.config.spec import ExperimentSpec
from hpcsched.core.settings import RetrySettings, Settings, ShaSettings, TimeoutSettings


def core_settings(spec: ExperimentSpec) -> Settings:
    """The core's settings; pure. The deadline is no setting: it comes with `ExperimentBegan`."""
    policy = spec.scheduler.policy
    num_trials = spec.search.num_trials
    if isinstance(policy, ShaSettings):
        num_trials = policy.num_trials
    return Settings(
        policy=policy,
        mode=spec.experiment.mode,
        metric_window=spec.experiment.metric_window,
        grace_period=spec.trial.grace_period,
        max_iterations=spec.trial.max_iterations,
        reduction_factor=spec.scheduler.reduction_factor,
        multiple_of=spec.atoms.multiple_of,
        max_trial_atoms=spec.atoms.max_trial_atoms,
        seed=spec.experiment.seed,
        num_trials=num_trials,
        scaling=spec.scaling,
        timeouts=TimeoutSettings(
            start_s=spec.timeouts.start,
            silence_s=spec.timeouts.silence,
            preempt_grace_s=spec.timeouts.preempt_grace,
            kill_wait_s=spec.timeouts.kill_wait,
        ),
        retries=RetrySettings(
            crashed=spec.retries.crashed,
            node_failed=spec.retries.node_failed,
            launch_failed=spec.retries.launch_failed,
            fail_fast=spec.retries.fail_fast,
        ),
    )
