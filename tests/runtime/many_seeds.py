"""The digits job many times over: one small network a seed, all in one trial, so that many seeds cost one start.

Writes which samples each rank trained on in each epoch (of the first seed) to its log.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hpcsched
from hpcsched.runtime.sampler import ElasticSampler

NUM_SEEDS, GLOBAL_BATCH, NUM_SAMPLES = 12, 48, 500


def main() -> None:
    trial = hpcsched.trial()
    sklearn = find_spec("sklearn")  # its file alone: to import all of it takes longer than to train
    assert sklearn is not None
    assert sklearn.origin is not None
    file = Path(sklearn.origin).parent / "datasets/data/digits.csv.gz"
    rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    images = torch.tensor(rows[:, :64], dtype=torch.float32) / 16
    labels = torch.tensor(rows[:, 64])
    nets, optimizers, samplers = [], [], []
    for seed in range(NUM_SEEDS):
        torch.manual_seed(seed)
        net = DistributedDataParallel(nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10)))
        nets.append(net)
        optimizers.append(torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9))
        samplers.append(
            ElasticSampler(
                NUM_SAMPLES,
                global_batch_size=GLOBAL_BATCH,
                rank=trial.rank,
                world_size=trial.world_size,
                seed=seed,
            )
        )
    trial.track(
        **{f"model{seed}": net for seed, net in enumerate(nets)},
        **{f"sgd{seed}": sgd for seed, sgd in enumerate(optimizers)},
        **{f"sampler{seed}": sampler for seed, sampler in enumerate(samplers)},
    )
    for iteration in trial:
        for seed, (net, sgd, sampler) in enumerate(zip(nets, optimizers, samplers, strict=True)):
            for batch in sampler.batches():
                if seed == 0:
                    print(f"saw {iteration}: {' '.join(map(str, batch))}")
                sgd.zero_grad()
                # The mean over the global batch: DDP averages over ranks, whose shares may be unequal.
                loss = nn.functional.cross_entropy(net(images[batch]), labels[batch], reduction="sum")
                (loss * trial.world_size / GLOBAL_BATCH).backward()
                sgd.step()
        with torch.no_grad():
            losses = [
                nn.functional.cross_entropy(net.module(images[NUM_SAMPLES:]), labels[NUM_SAMPLES:])
                for net in nets
            ]
        trial.report(accuracy=0.0, **{f"loss{seed}": loss for seed, loss in enumerate(losses)})


if __name__ == "__main__":
    main()
