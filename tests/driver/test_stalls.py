"""Who is waited for, as a dialogue: what supervisors tell, and what is said of it."""

from __future__ import annotations

from typing import Any

from hpcsched.driver.stalls import FRESH_S, Stalls
from hpcsched.wire import RankNow


def rank(
    number: int, collectives: int, still_s: float, doing: Any = "sleeps", iteration: int = 17
) -> RankNow:
    return RankNow(number, iteration, collectives, still_s, doing)


def said(stalls: Stalls, now: float, *ranks: RankNow) -> str | None:
    stall = stalls.heard(ranks, now)
    return None if stall is None else stall.text


def test_the_one_that_has_entered_the_fewest_collectives_is_waited_for() -> None:
    stalls = Stalls(4)
    others = [rank(number, 301, 39.0) for number in (0, 1, 2)]
    assert (
        said(stalls, 100.0, *others, rank(3, 300, 40.0))
        == "rank 3 has stalled (it uses no processor) for 40 s at iteration 17; the 3 others wait for it"
    )
    assert said(stalls, 105.0, *others, rank(3, 300, 45.0)) is None, "it is not told each time"
    again = said(stalls, 225.0, *others, rank(3, 300, 165.0))
    assert again is not None
    assert "for 165 s" in again
    moved = [rank(number, 310, 0.0, "computes") for number in range(4)]
    assert said(stalls, 230.0, *moved) == "rank 3 goes on after 170 s"
    assert said(stalls, 235.0, *moved) is None


def test_nothing_is_said_of_ranks_that_all_compute_however_long() -> None:
    stalls = Stalls(3)
    for now in range(0, 1000, 5):
        assert said(stalls, now, *(rank(number, 300, float(now), "computes") for number in range(3))) is None


def test_one_that_computes_while_the_others_wait_is_said_to_compute() -> None:
    text = said(Stalls(2), 0.0, rank(0, 9, 20.0, "computes"), rank(1, 10, 19.0))
    assert text == "rank 0 has been computing for 20 s at iteration 17; the other waits for it"


def test_a_stopped_rank_is_named_even_where_nobody_waits_yet() -> None:
    text = said(Stalls(2), 0.0, rank(0, 9, 20.0, "computes"), rank(1, 9, 20.0, "stopped"))
    assert text is not None
    assert text.startswith("rank 1 has been stopped")


def test_all_that_wait_for_data_are_said_to() -> None:
    text = said(Stalls(2), 0.0, rank(0, 9, 30.0, "data"), rank(1, 9, 31.0, "data"))
    assert text == "ranks 0, 1 have been waiting for data for 30 s at iteration 17"


def test_a_short_wait_is_none_and_a_rank_that_was_just_overtaken_neither() -> None:
    stalls = Stalls(2)
    assert said(stalls, 0.0, rank(0, 9, 14.0), rank(1, 10, 13.0)) is None
    assert said(stalls, 1.0, rank(0, 9, 1.0, "computes"), rank(1, 10, 0.2)) is None


def test_what_is_not_known_of_all_ranks_now_is_not_guessed() -> None:
    stalls = Stalls(2)
    assert said(stalls, 0.0, rank(0, 9, 100.0)) is None, "rank 1 has not told yet"
    assert said(stalls, 1.0, rank(1, 10, 100.0)) is not None
    stalls = Stalls(2)
    stalls.heard((rank(1, 10, 0.0),), 0.0)
    assert said(stalls, FRESH_S + 1, rank(0, 9, 100.0)) is None, "rank 1's node is silent"


def test_before_the_first_iteration_it_says_so() -> None:
    text = said(Stalls(2), 0.0, rank(0, 1, 60.0, "computes", 0), rank(1, 2, 59.0, iteration=0))
    assert text == "rank 0 has been computing for 60 s before the first iteration; the other waits for it"
