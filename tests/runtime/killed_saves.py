"""killed_saves.py FOLDER NUM: NUM times fork a process that trains and saves checkpoints without end (every other one in the
background, while it trains), kill it at a random instant, and verify every checkpoint that has its name. Prints: kills,
whole checkpoints, unfinished ones."""

import os
import random
import select
import signal
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from hpcsched.runtime.budget import SaveOutcome
from hpcsched.runtime.checkpoint import read_manifest, save, verify_files
from hpcsched.runtime.saver import Saver
from hpcsched.runtime.snapshot import Buffers, Snapshot, take
from hpcsched.runtime.tracked import Tracked


def save_for_ever(folder: Path, told: int, *, background: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.new_group(backend="gloo")
    net = torch.nn.Linear(200, 200)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    tracked = Tracked()
    tracked.add({"model": net, "optimizer": sgd})
    buffers = Buffers() if background else None

    def tell(outcome: SaveOutcome) -> None:
        os.write(told, b"x" if outcome.problem else b".")

    saver = Saver(torch.device("cpu"), tell)
    for iteration in range(1, 10**6):
        net(torch.ones(4, 200)).sum().backward()
        sgd.step()

        def write(snapshot: Snapshot, iteration: int = iteration) -> SaveOutcome:
            saved = save(
                folder / f"checkpoint-{iteration}",
                snapshot,
                trial_id=0,
                incarnation=1,
                training_iteration=iteration,
                within_iteration=False,
                config={},
                group=group,
            )
            return SaveOutcome(iteration, saved.save_s, saved.num_bytes)

        if buffers is None:
            tell(write(take(tracked, rank=0, num_ranks=1)))
        elif not saver.is_busy:
            saver.wait()
            saver.begin(iteration, partial(write, take(tracked, rank=0, num_ranks=1, buffers=buffers)))


def main(root: Path, num: int) -> None:
    # Imported before the forks, so that only once.
    import torch._dynamo  # what every optimizer imports at its first use
    import torch.distributed.checkpoint
    import torch.distributed.checkpoint.state_dict  # noqa: F401

    chance = random.Random(5)
    whole = unfinished = 0
    for number in range(num):
        folder = root / str(number)
        hears, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(folder, told, background=number % 2 == 1)
            finally:
                os._exit(1)
        os.close(told)
        assert os.read(hears, 1) == b"."
        wait_s = chance.uniform(0.0, 0.05)
        select.select([], [], [], wait_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(hears)
        for path in folder.iterdir():
            if ".tmp" in path.name:
                unfinished += 1
            else:
                verify_files(path, read_manifest(path))
                whole += 1
    print(num, whole, unfinished)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
