"""Orders as files in `control/`: each is handed out once, stays until it is answered, and what is none harms nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcsched.driver.control import ANSWER_KEPT_S, MOST_AT_ONCE, Letterbox, drop_order, take_answer
from hpcsched.orders import MAX_BYTES, AddAsked, Answer, Ask, ExtendAsked, Order, StopAsked, new_order_id
from hpcsched.runfolder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    made.control.mkdir()
    return made


def dropped(folder: RunFolder, ask: Ask) -> Order:
    order = Order(new_order_id(), 1, ask)
    drop_order(folder, order)
    return order


def test_orders_arrive_in_order_and_foreign_files_are_refused(folder: RunFolder) -> None:
    orders = [dropped(folder, ask) for ask in (StopAsked(3), ExtendAsked(60.0), AddAsked({"x": 1}))]
    (folder.control / "zz.json").write_text("{broken")
    (folder.control / ".half").write_text("not renamed yet")
    (folder.control / "zzz.json").symlink_to("/etc/passwd")
    box = Letterbox(folder)
    letters, complaints = box.look()
    assert [letter.order for letter in letters] == orders
    assert len(complaints) == 2
    assert box.look() == ([], []), "each is handed out once"


def test_a_flood_of_files_is_taken_in_parts_and_in_order(folder: RunFolder) -> None:
    orders = [dropped(folder, StopAsked(number)) for number in range(MOST_AT_ONCE + 5)]
    box = Letterbox(folder)
    first, second, third = ([letter.order for letter in box.look()[0]] for _ in range(3))
    assert (len(first), first + second, third) == (MOST_AT_ONCE, orders, [])


def test_an_order_stays_until_it_is_answered_and_the_answer_until_it_is_read(folder: RunFolder) -> None:
    order = dropped(folder, StopAsked(3))
    box = Letterbox(folder)
    ((letter,), _) = box.look()
    again = Letterbox(folder)  # the driver has died: the next one finds it
    ((same,), _) = again.look()
    assert same == letter
    assert take_answer(folder, order.order_id) is None
    answer = Answer(order.order_id, True, "trial 3 leaves")
    assert again.answer(same, answer) == ""
    assert again.look() == ([], [])
    assert take_answer(folder, new_order_id()) is None
    assert take_answer(folder, order.order_id) == answer
    assert not list(folder.control.iterdir())


def test_an_answer_that_nobody_reads_is_removed_in_the_end(folder: RunFolder) -> None:
    order = dropped(folder, StopAsked(3))
    box = Letterbox(folder)
    ((letter,), _) = box.look()
    box.answer(letter, Answer(order.order_id, True, "done"))
    box.look()
    (left,) = folder.control.iterdir()
    os.utime(left, (left.stat().st_atime, left.stat().st_mtime - 2 * ANSWER_KEPT_S))
    box.look()
    assert not list(folder.control.iterdir())


def test_what_is_no_plain_file_holds_up_no_order_and_is_complained_about_once(folder: RunFolder) -> None:
    os.mkfifo(folder.control / "0-pipe.json")  # to open it would wait for a writer for ever
    (folder.control / "0-zero.json").symlink_to("/dev/zero")
    (folder.control / "0-folder.json").mkdir()
    (folder.control / "0-large.json").write_bytes(b" " * (MAX_BYTES + 1))
    order = dropped(folder, StopAsked())
    box = Letterbox(folder)
    letters, complaints = box.look()
    assert [letter.order for letter in letters] == [order]
    assert [text.split()[2] for text in complaints] == [
        "0-folder.json",
        "0-large.json",
        "0-pipe.json",
        "0-zero.json",
    ]
    assert box.look() == ([], [])


def test_an_answer_goes_through_no_link(folder: RunFolder, tmp_path: Path) -> None:
    order = dropped(folder, StopAsked())
    box = Letterbox(folder)
    ((letter,), _) = box.look()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder.control / f".{order.order_id}.answer").symlink_to(victim)
    assert "cannot be written" in box.answer(letter, Answer(order.order_id, True, "done"))
    assert victim.read_text() == "mine"
    assert not letter.file.exists()
