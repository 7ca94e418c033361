"""Checkpoints that nobody needs go: what lies on the disk is bounded, at every moment and at the end."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from hpcsched.core import actions as act
from hpcsched.core import events as ev
from tests.support.e2e import light_job


def test_the_disk_holds_the_latest_and_the_best_checkpoint_of_each_trial(tmp_path: Path) -> None:
    """Eight trials that save after each of twelve iterations: 96 checkpoints are written."""
    configs = [{"height": 0.9 - 0.05 * number, "save": "each", "step_s": 0.05} for number in range(8)]
    run = light_job(tmp_path, configs, max_iterations=12, deadline="3m").start()
    assert run.ends(200.0) == 0, run.told()
    run.check()
    kept: dict[int, set[tuple[int, int]]] = defaultdict(set)
    num_saved = most = 0
    for step in run.steps():
        event = step.event
        if isinstance(event, ev.CheckpointSaved):
            num_saved += 1
            kept[event.trial_id].add((event.incarnation, event.training_iteration))
        for action in step.actions:
            if isinstance(action, act.DeleteCheckpoint):
                ref = action.checkpoint
                kept[ref.trial_id].discard((ref.incarnation, ref.training_iteration))
        # The latest and the best of each trial, and the best of all.
        most = max([most, *map(len, kept.values())])
        assert sum(map(len, kept.values())) <= 2 * len(configs) + 1
    assert num_saved >= 90
    assert most <= 3
    on_disk = {
        (int(path.parts[-3]), int(path.parts[-2]), int(path.name.partition("-")[2]))
        for path in run.folder.trials.glob("*/*/checkpoint-*")
    }
    assert on_disk == {(trial_id, *each) for trial_id, refs in kept.items() for each in refs}
