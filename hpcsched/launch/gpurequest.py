"""How a step asks for all GPUs that the job holds on its nodes.

Seen on Slurm 22.05.8, in a job whose nodes hold 4, 4, 2 and 3 GPUs: ``--gres=gpu:N`` is refused for every N above
the *least* of the job's nodes ("Invalid generic resource (gres) specification"), also on a node that holds more and also when the step runs
there alone; ``--gpus=N`` on one node is granted up to what that node holds; over two nodes ``--gpus`` deals them out
unevenly (1 and 4 of 8). So: equal nodes share a step with ``--gres``; in an unequal job each node that holds more
than the least has a step of its own with ``--gpus``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


class GpuRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that one step can span, and the option that asks for their GPUs."""

    nodes: tuple[str, ...]
    option: str
    """"--gres=gpu:4", "--gpus=4" or "--gres=none"."""


def gpu_requests(nodes: Sequence[str], job_gpus: Mapping[str, int]) -> tuple[GpuRequest, ...]:
    """The steps that together span `nodes` with all GPUs of each; `job_gpus` names every node of the *job*."""
    least = min(job_gpus.values(), default=0)
    together: list[str] = []
    requests: list[GpuRequest] = []
    without: list[str] = []
    for node in nodes:
        num = job_gpus[node]
        if num == 0:
            without.append(node)
        elif num == least:
            together.append(node)
        else:
            requests.append(GpuRequest((node,), f"--gpus={num}"))
    if together:
        requests.insert(0, GpuRequest(tuple(together), f"--gres=gpu:{least}"))
    if without:
        requests.append(GpuRequest(tuple(without), "--gres=none"))
    return tuple(requests)
