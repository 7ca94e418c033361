"""How ranks end: with all their threads joined."""

from __future__ import annotations

from pathlib import Path

from tests.support.ranks import Stage

SCRIPT = Path(__file__).parent / "late_trial.py"


def test_a_thread_that_still_holds_a_tensor_is_waited_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "run")
    try:
        spec = stage.spec(SCRIPT, world_size=2, max_iterations=1)
        assert stage.run(spec) == [0, 0], stage.log(spec)
    finally:
        stage.close()
