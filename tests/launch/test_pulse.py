"""What a supervisor's heartbeats say."""

from __future__ import annotations

from hpcsched.launch.pulse import HUNG_AFTER_S, Pulse


class Watched:
    """A pulse by hand: whether it beats at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num = 0
        self.pulse = Pulse(self._beat, 1.0, clock=lambda: self.now)

    def _beat(self) -> None:
        self.num += 1

    def beats_at(self, now: float) -> bool:
        self.now = now
        before = self.num
        self.pulse.tick()
        return self.num > before


def test_a_start_of_any_length_has_heartbeats() -> None:
    watched = Watched()
    assert all(watched.beats_at(float(second)) for second in range(0, 600, 10))


def test_a_main_thread_that_stays_away_ends_the_heartbeats_until_it_is_back() -> None:
    watched = Watched()
    watched.pulse.came_round()
    assert watched.beats_at(HUNG_AFTER_S)
    assert not watched.beats_at(HUNG_AFTER_S + 1.0)
    watched.pulse.came_round()
    assert watched.beats_at(HUNG_AFTER_S + 2.0)


def test_none_comes_after_the_end() -> None:
    watched = Watched()
    watched.pulse.stop()
    assert not watched.beats_at(1.0)
