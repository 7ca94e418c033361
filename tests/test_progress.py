from __future__ import annotations

from pathlib import Path

from hpcsched.progress import Board, Mark, Phase, Slot


def test_a_supervisor_reads_what_its_ranks_write() -> None:
    board = Board(2)
    one, other = Slot(board.path, 0), Slot(board.path, 1)
    assert (board.mark(0), board.mark(1)) == (None, None)
    other.phase(Phase.COMPUTE)
    other.iteration(4)
    other.step()
    other.step()
    other.collectives(99)
    assert board.mark(0) is None
    assert board.mark(1) == Mark(4, 2, 99, Phase.COMPUTE)
    one.phase(Phase.DATA)
    mark = board.mark(0)
    assert mark is not None
    assert mark.phase is Phase.DATA
    board.close()


def test_without_memory_a_slot_does_nothing(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"x")
    for path in (None, "/nowhere/at/all", str(short)):
        slot = Slot(path, 3)
        assert not slot.is_read
        slot.phase(Phase.COMPUTE)
        slot.step()
