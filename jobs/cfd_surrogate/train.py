"""A network that predicts a flow's next snapshot, trained as RASDA trains: the batch of a rank stays, so that more ranks
mean a larger batch, and the rate follows (times the ranks for SGD, their root for Adam).

    python train.py --data flow.h5               alone (python flow.py flow.h5 makes the data)
    hpcsched run experiment.toml                 many configurations, by the deadline
"""

import argparse
from pathlib import Path

import h5py
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hpcsched
from hpcsched.runtime.scaling import rasda

AHEAD = 16
"""Snapshots that a flow is predicted from its first one to be judged."""


class Surrogate(nn.Module):
    """Convolutions around a periodic box; predicts the change, not the field."""

    def __init__(self, channels: int, activation: str) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        sizes = [1, channels, channels, channels, channels]
        for spread, inputs, outputs in zip((1, 2, 4, 1), sizes, sizes[1:], strict=False):
            layers += [
                nn.Conv2d(inputs, outputs, 5, padding=2 * spread, dilation=spread, padding_mode="circular"),
                getattr(nn, activation)(),
            ]
        self.change = nn.Sequential(*layers, nn.Conv2d(channels, 1, 1))

    def forward(self, field: Tensor) -> Tensor:
        return field + self.change(field)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path(__file__).with_name("flow.h5"))
    parser.add_argument("--batch", type=int, default=16, help="snapshots a rank and step")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5, help="of an iteration")
    options = parser.parse_args()
    if not options.data.exists():
        raise SystemExit(
            f"{options.data} is not there: python {Path(__file__).with_name('flow.py')} {options.data}"
        )
    trial = hpcsched.trial(learning_rate=1e-3, weight_decay=0.01, optimizer="adam", activation="ReLU")
    torch.manual_seed(trial.seed)
    config = trial.config

    net = DistributedDataParallel(Surrogate(options.channels, config["activation"]).to(trial.device))
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[config["optimizer"]]
    optimizer = make(net.parameters(), lr=config["learning_rate"], weight_decay=config["weight_decay"])
    scaling = trial.scaling(optimizer, batch_size=options.batch, rule=rasda(optimizer))

    # All ranks read the one file, each the snapshots of its own batches; the last eighth of the flows is for judging.
    with h5py.File(options.data, "r") as h5:
        data = h5["vorticity"]
        num_flows, num_snapshots = data.shape[:2]
        num_train = num_flows - max(1, num_flows // 8)
        pairs = num_snapshots - 1
        ahead = min(AHEAD, pairs)
        judges = torch.from_numpy(data[num_train + trial.rank :: trial.world_size, [0, ahead]]).to(
            trial.device
        )
        scale = float(data[0, 0].std())

        def pair(place: int) -> Tensor:
            flow, snapshot = divmod(place, pairs)
            return torch.from_numpy(data[flow, snapshot : snapshot + 2])

        sampler = trial.sampler(num_train * pairs, global_batch_size=scaling.global_batch_size)
        trial.track(model=net, optimizer=optimizer, scaling=scaling, sampler=sampler)
        for _ in trial:
            net.train()
            for _ in range(options.epochs):
                for batch in sampler.batches():
                    before, after = (
                        torch.stack([pair(place) for place in batch]).to(trial.device) / scale
                    ).split(1, dim=1)
                    optimizer.zero_grad()
                    nn.functional.mse_loss(net(before), after).backward()
                    optimizer.step()
                scaling.step()
            net.eval()
            with torch.no_grad():
                field, truth = (judges / scale).split(1, dim=1)
                for _ in range(ahead):
                    field = net.module(field)
                sums = torch.stack([(field - truth).square().sum(), truth.square().sum()])
            dist.all_reduce(sums)
            trial.report(error=(sums[0] / sums[1]).sqrt(), learning_rate=scaling.learning_rates[0])


if __name__ == "__main__":
    main()
