"""Two links over a line that breaks, loses and comes back: every message arrives once and in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcsched.channel.link import Link
from hpcsched.errors import MessageError

STEPS = ["put a", "put b", "flush a", "flush b", "deliver a", "deliver b", "break"]


class Line:
    """A connection between two links, as sockets would carry it: two queues in order, lost when it breaks."""

    def __init__(self) -> None:
        self.links = {"a": Link(1, max_kept=1000, leads=True), "b": Link(2, max_kept=1000, leads=False)}
        self.under_way: dict[str, list[tuple[bytes, bytes]]] = {"a": [], "b": []}
        self.put: dict[str, list[bytes]] = {"a": [], "b": []}
        self.taken: dict[str, list[bytes]] = {"a": [], "b": []}
        self.sessions = 2
        self.reconnect()

    def flush(self, side: str) -> None:
        link = self.links[side]
        for seq, body in link.unsent():
            self.under_way[side].append((link.header(seq), body))
            link.sent = seq

    def deliver(self, side: str, everything: bool = False) -> None:
        """One frame (or all) that `side` has sent reaches the other."""
        other = "b" if side == "a" else "a"
        while self.under_way[side]:
            header, body = self.under_way[side].pop(0)
            first, fresh = self.links[other].take(header)
            if first:
                self.links[other].connection_began()
            if fresh:
                self.taken[other].append(body)
            if not everything:
                return

    def reconnect(self) -> None:
        """What was under way is lost; `a` connects anew and both begin with the oldest message kept."""
        self.under_way = {"a": [], "b": []}
        self.links["a"].connection_began()
        self.under_way["a"].append((self.links["a"].header(first=True), b""))

    def settle(self) -> None:
        for _ in range(4):
            for side in "ab":
                self.flush(side)
                self.under_way[side].append((self.links[side].header(), b""))
                self.deliver(side, everything=True)


def play(steps: list[str]) -> Line:
    line = Line()
    for number, step in enumerate(steps):
        match step.split():
            case ["put", side]:
                body = str(number).encode()
                line.links[side].put(body)
                line.put[side].append(body)
            case ["flush", side]:
                line.flush(side)
            case ["deliver", side]:
                line.deliver(side)
            case ["break"]:
                line.reconnect()
            case ["restart", "b"]:
                # A new driver process with the same keys: what the old one had to say, and has heard, is over.
                line.sessions += 1
                line.links["b"] = Link(line.sessions, max_kept=1000, leads=False)
                line.put["b"] = list(line.taken["a"])
                line.reconnect()
    line.reconnect()
    line.settle()
    assert line.links["a"].num_kept == 0
    assert line.links["b"].num_kept == 0
    return line


@settings(max_examples=400)
@given(st.lists(st.sampled_from(STEPS), max_size=60))
def test_nothing_is_lost_doubled_or_reordered_over_broken_connections(steps: list[str]) -> None:
    line = play(steps)
    assert line.taken["a"] == line.put["b"]
    assert line.taken["b"] == line.put["a"]


@settings(max_examples=400)
@given(st.lists(st.sampled_from([*STEPS, "restart b"]), max_size=60))
def test_a_server_that_starts_again_gets_all_that_was_not_acknowledged(steps: list[str]) -> None:
    line = play(steps)
    assert line.taken["a"] == line.put["b"]
    # What an earlier `b` took without its acknowledgement reaching us is told to the new one again.
    assert list(dict.fromkeys(line.taken["b"])) == line.put["a"]


def test_the_oldest_is_given_up_when_too_much_is_kept() -> None:
    link = Link(1, max_kept=3, leads=True)
    for number in range(5):
        link.put(bytes([number]))
    assert link.num_given_up == 2
    assert [seq for seq, _ in link.unsent()] == [3, 4, 5]


def test_an_acknowledgement_of_an_earlier_life_is_not_taken_for_ours() -> None:
    old, other = Link(1, max_kept=9, leads=False), Link(2, max_kept=9, leads=True)
    for _ in range(5):
        old.put(b"x")
        for seq, _ in old.unsent():
            other.take(old.header(seq))
            old.sent = seq
    new = Link(3, max_kept=9, leads=False)
    new.put(b"y")
    new.take(other.header())
    assert new.num_kept == 1


@pytest.mark.parametrize("header", [b"", b"x", b"x" * 36, b"x" * 38, b"x" * 1000])
def test_a_header_of_another_length_is_no_message(header: bytes) -> None:
    with pytest.raises(MessageError):
        Link(1, max_kept=1, leads=False).take(header)
