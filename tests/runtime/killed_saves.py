"""killed_saves.py FOLDER NUM: NUM times fork a process that saves checkpoints without end, kill it at a random instant,
and verify every checkpoint that has its name. Prints: kills, whole checkpoints, unfinished ones."""

import os
import random
import select
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from hpcsched.runtime.checkpoint import read_manifest, save, verify_files
from hpcsched.runtime.tracked import Tracked


def save_for_ever(folder: Path, told: int) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.new_group(backend="gloo")
    net = torch.nn.Linear(200, 200)
    tracked = Tracked()
    tracked.add({"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)})
    for iteration in range(1, 10**6):
        save(
            folder / f"checkpoint-{iteration}",
            tracked,
            trial_id=0,
            incarnation=1,
            training_iteration=iteration,
            within_iteration=False,
            config={},
            group=group,
        )
        os.write(told, b".")


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
                save_for_ever(folder, told)
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
