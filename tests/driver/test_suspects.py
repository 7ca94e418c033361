from __future__ import annotations

from hpcsched.core.enums import Outcome
from hpcsched.driver.suspects import NUM_TRIALS, Suspects, Verdict


def crash(suspects: Suspects, trial_id: int, *nodes: str, others_live: bool = False) -> list[str]:
    """The nodes that are set aside."""
    return list(verdict(suspects, trial_id, *nodes, others_live=others_live).set_aside)


def verdict(suspects: Suspects, trial_id: int, *nodes: str, others_live: bool = True) -> Verdict:
    return suspects.ended(trial_id, nodes, Outcome.CRASHED, has_reported=False, others_live=others_live)


def test_the_first_trials_of_a_broken_node_are_not_to_blame_while_others_live_elsewhere() -> None:
    """Four die at once before anybody has reported: one crash, then the node answers for the others."""
    suspects = Suspects()
    assert [verdict(suspects, trial_id, "n2") for trial_id in range(4)] == [
        Verdict(),
        Verdict(to_blame="n2"),
        Verdict(set_aside=("n2",), to_blame="n2"),
        Verdict(to_blame="n2"),
    ]


def test_trials_that_die_on_two_nodes_are_to_blame_themselves() -> None:
    suspects = Suspects()
    assert verdict(suspects, 0, "n1") == Verdict()
    assert [verdict(suspects, trial_id, f"n{1 + trial_id % 2}") for trial_id in range(1, 9)] == [
        Verdict()
    ] * 8


def test_a_trial_on_several_nodes_accuses_none_of_them() -> None:
    suspects = Suspects()
    assert [verdict(suspects, trial_id, "n1", "n2") for trial_id in range(4)] == [Verdict()] * 4


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
        for outcome, has_reported in ((Outcome.CRASHED, True), (Outcome.PREEMPTED, False)):
            given = suspects.ended(trial_id, ["n1"], outcome, has_reported=has_reported, others_live=True)
            assert given == Verdict()
        suspects.reported(["n2"])
    assert crash(suspects, 9, "n1") == []


def test_the_second_tries_of_bad_configurations_accuse_no_node() -> None:
    """They crash after a report, somebody else reports there, and the second tries die where the first ones died, before a report."""
    suspects = Suspects()
    for trial_id in range(5):
        suspects.ended(trial_id, ["n1"], Outcome.CRASHED, has_reported=True, others_live=True)
    suspects.reported(["n1"])
    assert [verdict(suspects, trial_id, "n1") for trial_id in range(5)] == [Verdict()] * 5
    assert verdict(suspects, 5, "n1") == Verdict(), "the first that accuses it"
    assert verdict(suspects, 6, "n1") == Verdict(to_blame="n1")


def test_a_node_that_breaks_under_its_trials_is_accused_by_their_second_tries() -> None:
    suspects = Suspects()
    for trial_id in range(3):
        suspects.ended(trial_id, ["n1"], Outcome.CRASHED, has_reported=True, others_live=True)
    suspects.reported(["n2"])
    assert [verdict(suspects, trial_id, "n1") for trial_id in range(3)] == [
        Verdict(),
        Verdict(to_blame="n1"),
        Verdict(set_aside=("n1",), to_blame="n1"),
    ]


def test_a_trial_that_dies_on_one_node_and_then_on_another_accuses_neither() -> None:
    suspects = Suspects()
    for trial_id in range(4):
        assert verdict(suspects, trial_id, f"n{1 + trial_id}", others_live=False) == Verdict()
        assert verdict(suspects, trial_id, "n9") == Verdict()
    assert verdict(suspects, 4, "n9") == Verdict()


def test_a_node_that_is_lost_again_and_again_is_set_aside() -> None:
    suspects = Suspects()
    assert [suspects.lost("n1") for _ in range(4)] == [False, False, True, False]
    assert suspects.set_aside == {"n1"}
