"""A model sharded by FSDP2 (`fully_shard`) as a trial, on the trial's own device."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import hpcsched


def main() -> None:
    trial = hpcsched.trial(max_iterations=4)
    torch.manual_seed(trial.seed)
    data = torch.randn(96, 6, generator=torch.Generator().manual_seed(1)).to(trial.device)
    # Widths that no world size of the test divides: shards are uneven, one rank's may be empty.
    net = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5)).to(trial.device)
    mesh = init_device_mesh(trial.device.type, (trial.world_size,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    adam = torch.optim.AdamW(net.parameters(), lr=0.05)
    sampler = trial.sampler(len(data), global_batch_size=24)
    trial.track(model=net, optimizer=adam, sampler=sampler)

    def whole(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def fingerprint() -> str:
        state = [whole(value).sum() for each in adam.state.values() for value in each.values()]
        weights = [whole(parameter).sum() for parameter in net.parameters()]
        return " ".join(f"{float(number):.4f}" for number in weights + state)

    print(f"restored {trial.iteration}: {fingerprint()}")
    for iteration in trial:
        for batch in sampler.batches():
            adam.zero_grad()
            net(data[batch]).square().mean().backward()
            adam.step()
        print(f"trained {iteration}: {fingerprint()}")
        trial.report(accuracy=iteration)


if __name__ == "__main__":
    main()
