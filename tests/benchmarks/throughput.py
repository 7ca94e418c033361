"""Training inside of hpcsched against the same loop without it: `python -m tests.benchmarks.throughput [--json]`.

One process trains the same network on made images by the same function, in turns: with plain torch, and as a trial that reports each
iteration and saves in the background by its default budget. On a GPU: ResNet-50, bf16 autocast, channels_last (the job's own network);
without one a narrow one of the same make. Prints::

    {"device", "steps": of an iteration,
     "plain_images_per_s", "trial_images_per_s": medians over the turns,
     "ratio": the second by the first}

On a GPU the ratio is to be at least 0.95. All numbers are of this machine, now: compare those of one run with each other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpcsched.runtime.groups import Groups
from hpcsched.runtime.place import Place
from hpcsched.runtime.trial import Trial
from tests.support.groups import HeardLine, launch

JOB = Path(__file__).parents[2] / "jobs/imagenet_resnet50"


class Training:
    """The network, and a step of it."""

    def __init__(self, device: torch.device, width: int, batch: int, side: int) -> None:
        sys.path.insert(0, str(JOB))
        spec = importlib.util.spec_from_file_location("imagenet_train", JOB / "train.py")
        assert spec is not None
        assert spec.loader is not None
        job = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(job)
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.device, self.batch = device, batch
        net = job.resnet50(width).to(device, memory_format=torch.channels_last)
        self.net = DistributedDataParallel(net)
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)
        images = torch.randn(batch, 3, side, side, device=device)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 1000, (batch,), device=device)

    def steps(self, num: int) -> float:
        """Seconds."""
        self._wait()
        began = time.monotonic()
        for _ in range(num):
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(self.net(self.images), self.labels)
            self.sgd.zero_grad()
            loss.backward()
            self.sgd.step()
        self._wait()
        return time.monotonic() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(folder: Path, *, turns: int, steps: int, width: int, batch: int, side: int) -> dict[str, object]:
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]  # not in its list of exports
    groups = Groups(device, dist.new_group(backend="gloo"), dist.new_group(backend="gloo"))
    training = Training(device, width, batch, side)
    place = Place(
        rank=0, world_size=1, local_rank=0, launch=launch(folder, max_iterations=10**6), rendezvous=True
    )
    trial = Trial(place, groups, HeardLine(), defaults={}, max_iterations=None, seed=None, setup_s={})
    trial.track(model=training.net, optimizer=training.sgd)
    iterations = iter(trial)
    training.steps(steps)  # kernels are chosen, memory is taken
    next(iterations)
    plain, inside = [], []
    for _ in range(turns):
        plain.append(training.steps(steps))
        began = time.monotonic()
        training.steps(steps)
        trial.report(accuracy=0.0)
        next(iterations)
        inside.append(time.monotonic() - began)
    trial._wait_for_save()
    rates = [steps * batch / median(found) for found in (plain, inside)]
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "steps": steps,
        "plain_images_per_s": round(rates[0], 2),
        "trial_images_per_s": round(rates[1], 2),
        "ratio": round(rates[1] / rates[0], 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.throughput")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100 if on_gpu else 5)
    parser.add_argument("--width", type=int, default=64 if on_gpu else 8)
    parser.add_argument("--batch", type=int, default=128 if on_gpu else 4)
    parser.add_argument("--side", type=int, default=224 if on_gpu else 64)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="throughput-", dir=Path.cwd()) as folder:
        row = measure(
            Path(folder),
            turns=options.turns,
            steps=options.steps,
            width=options.width,
            batch=options.batch,
            side=options.side,
        )
    if options.json:
        print(json.dumps(row))
    else:
        print(
            f"{row['device']}: {row['plain_images_per_s']} images a second alone, {row['trial_images_per_s']} as a trial "
            f"(ratio {row['ratio']})"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
