"""Dialogues with the driver's spares."""

from __future__ import annotations

from hpcsched.driver.spares import FIRST_WAIT_S, Spares

SILENT_S = 5.0


def ready_on(*nodes: str) -> Spares:
    spares = Spares()
    for number, _ in spares.missing(nodes, 0.0):
        spares.ready(number, None, 1.0)
    return spares


def test_one_spare_a_node_is_started_and_none_twice() -> None:
    spares = Spares()
    assert spares.missing(["n1", "n2"], 0.0) == [(0, "n1"), (1, "n2")]
    assert spares.missing(["n1", "n2"], 1.0) == []


def test_an_incarnation_takes_the_spares_of_all_its_nodes_or_none() -> None:
    spares = ready_on("n1", "n2")
    assert spares.take(["n1", "n3"], 2.0, SILENT_S) is None
    assert spares.take(["n1", "n2"], 2.0, SILENT_S) == {"n1": 0, "n2": 1}
    assert spares.take(["n1"], 2.0, SILENT_S) is None
    assert spares.missing(["n1"], 2.0) == [(2, "n1")]


def test_a_node_can_keep_several() -> None:
    spares = Spares(per_node=2)
    assert spares.missing(["n1"], 0.0) == [(0, "n1"), (1, "n1")]
    spares.ready(1, None, 1.0)
    assert spares.take(["n1"], 2.0, SILENT_S) == {"n1": 1}
    assert spares.missing(["n1"], 2.0) == [(2, "n1")]


def test_a_spare_that_has_not_preloaded_yet_is_not_taken() -> None:
    spares = Spares()
    spares.missing(["n1"], 0.0)
    assert spares.take(["n1"], 1.0, SILENT_S) is None


def test_a_silent_spare_is_not_taken_and_is_killed() -> None:
    spares = ready_on("n1")
    assert spares.take(["n1"], 60.0, SILENT_S) is None
    assert spares.silent(60.0, SILENT_S) == [0]
    assert spares.silent(60.0, SILENT_S) == []


def test_a_node_whose_spares_fail_is_left_alone_for_ever_longer() -> None:
    spares = Spares()
    now, waits = 0.0, []
    for _ in range(4):
        began = now
        while not (started := spares.missing(["n1"], now)):
            now += 1.0
        waits.append(now - began)
        assert spares.lost(started[0][0], now)
    assert waits == [0.0, FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]


def test_preloading_that_does_not_work_is_not_tried_again() -> None:
    spares = Spares()
    spares.missing(["n1"], 0.0)
    spares.ready(0, "what was preloaded has started 3 threads", 1.0)
    assert spares.take(["n1"], 2.0, SILENT_S) is None
    assert spares.missing(["n2"], 2.0) == []


def test_the_end_of_a_spare_that_was_taken_is_not_its_loss() -> None:
    spares = ready_on("n1")
    spares.take(["n1"], 2.0, SILENT_S)
    assert not spares.lost(0, 3.0)
