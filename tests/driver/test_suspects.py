from __future__ import annotations

from hpcsched.core.enums import Outcome
from hpcsched.driver.suspects import NUM_TRIALS, Suspects


def crash(suspects: Suspects, trial_id: int, *nodes: str) -> list[str]:
    return suspects.ended(trial_id, nodes, Outcome.CRASHED, has_reported=False)


def test_a_node_on_which_three_trials_in_a_row_crash_is_set_aside() -> None:
    suspects = Suspects()
    assert crash(suspects, 0, "n1") == []
    suspects.reported(["n2"])
    assert crash(suspects, 1, "n1") == []
    assert crash(suspects, 2, "n1") == ["n1"]
    assert crash(suspects, 3, "n1") == [], "once is enough"


def test_a_report_clears_the_node() -> None:
    suspects = Suspects()
    crash(suspects, 0, "n1")
    crash(suspects, 1, "n1")
    suspects.reported(["n1", "n2"])
    suspects.reported(["n2"])
    assert crash(suspects, 2, "n1") == []


def test_a_script_that_crashes_everywhere_is_no_node_s_fault() -> None:
    suspects = Suspects()
    for trial_id in range(3 * NUM_TRIALS):
        assert crash(suspects, trial_id, f"n{trial_id % 3}") == []


def test_one_trial_that_crashes_again_and_again_is_its_own_fault() -> None:
    suspects = Suspects()
    crash(suspects, 0, "n1")
    suspects.reported(["n2"])
    assert [crash(suspects, 0, "n1") for _ in range(5)] == [[]] * 5


def test_a_crash_after_a_report_and_an_end_in_order_do_not_count() -> None:
    suspects = Suspects()
    for trial_id in range(5):
        assert suspects.ended(trial_id, ["n1"], Outcome.CRASHED, has_reported=True) == []
        assert suspects.ended(trial_id, ["n1"], Outcome.PREEMPTED, has_reported=False) == []
        suspects.reported(["n2"])
    assert crash(suspects, 9, "n1") == []


def test_a_node_that_is_lost_again_and_again_is_set_aside() -> None:
    suspects = Suspects()
    assert [suspects.lost("n1") for _ in range(4)] == [False, False, True, False]
    assert suspects.set_aside == {"n1"}
