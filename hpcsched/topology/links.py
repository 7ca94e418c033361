"""How the GPUs of one node are linked, and which of them belong together.

``nvidia-smi topo -m`` prints a matrix of GPUs and NICs whose cells name the best path between two devices. From
near to far (its legend): NV# (# bonded NVLinks), PIX (at most one PCIe bridge), PXB (several bridges, no host
bridge), PHB (a host bridge), NODE (several host bridges of one NUMA node), SYS (over the sockets' interconnect).

An *island* is a set of GPUs each linked to each other as well as the node's best links that join more than one GPU
allow: all eight behind an NVSwitch, or the four of a socket in a PCIe box. GPUs are grouped by merging sets while *every* pair
across them is at least so near (complete linkage): NVLink rings and meshes that are not full fall into the
quads and pairs that are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from hpcsched.topology.slurmtext import parse_id_list


class Near(IntEnum):
    """Kinds of path, farther is smaller. NVLink counts are told apart in `Link.num_nvlinks`."""

    UNKNOWN = 0
    SYS = 1
    NODE = 2
    PHB = 3
    PXB = 4
    PIX = 5
    NVLINK = 6


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The path between two devices; larger is nearer."""

    near: Near
    num_nvlinks: int = 0

    def __str__(self) -> str:
        return f"NV{self.num_nvlinks}" if self.near is Near.NVLINK else self.near.name


_KINDS = {"SYS": Near.SYS, "SOC": Near.SYS, "NODE": Near.NODE, "PHB": Near.PHB, "PXB": Near.PXB, "PIX": Near.PIX, "PSB": Near.PIX}  # fmt: skip


class GpuLinks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The matrix of one node. GPUs by position, as nvidia-smi numbers them."""

    num_gpus: int
    links: dict[str, Link]
    """"0-1" (lower first) -> path."""
    cores: tuple[tuple[int, ...] | None, ...]
    """Cores near each GPU; None where it is not said."""
    numa: tuple[int | None, ...]
    nics: tuple[tuple[str, ...], ...]
    """The NICs nearest to each GPU (all that are equally near); empty where there are none."""

    def link(self, one: int, other: int) -> Link:
        low, high = sorted((one, other))
        return self.links.get(f"{low}-{high}", Link(Near.UNKNOWN))


def parse_topo_matrix(text: str) -> GpuLinks | None:
    """`nvidia-smi topo -m`; None when there is no such matrix in the text.

    Cells are separated by tabs, or by blanks where a copy has lost the tabs. The affinity columns are found by their
    form, since their number and names changed over the driver versions (and some versions run them together).
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # the header line is underlined
    lines = [line for line in text.splitlines() if line.strip()]
    head = next(
        (i for i, line in enumerate(lines) if re.match(r"\s*GPU0\b", line) and " X " not in f" {line} "), None
    )
    if head is None:
        return None
    columns = [
        name
        for name in lines[head].split()
        if re.fullmatch(r"GPU\d+|NIC\d+|\w+_\d+(?:_bond)?|\w+_bond_?\d+", name)
    ]
    names = _nic_names(lines)
    gpu_columns = {name: i for i, name in enumerate(columns) if re.fullmatch(r"GPU\d+", name)}
    num_gpus = len(gpu_columns)
    rows: dict[int, list[str]] = {}
    for line in lines[head + 1 :]:
        match = re.match(r"\s*GPU(\d+)\s+(.*)", line)
        if match is not None and int(match[1]) < num_gpus:
            rows.setdefault(int(match[1]), match[2].split())
    if sorted(rows) != list(range(num_gpus)) or set(gpu_columns) != {f"GPU{gpu}" for gpu in rows}:
        return None
    links: dict[str, Link] = {}
    cores: list[tuple[int, ...] | None] = []
    numa: list[int | None] = []
    nics: list[tuple[str, ...]] = []
    for gpu in range(num_gpus):
        cells, rest = rows[gpu][: len(columns)], rows[gpu][len(columns) :]
        if len(cells) < len(columns):
            return None
        for other in range(gpu + 1, num_gpus):
            links[f"{gpu}-{other}"] = _link(cells[gpu_columns[f"GPU{other}"]])
        near = {column: _link(cells[i]) for i, column in enumerate(columns) if column not in gpu_columns}
        best = max(near.values(), default=None)
        nics.append(tuple(names.get(column, column) for column, link in near.items() if link == best))
        cores.append((parse_id_list(rest[0]) or None) if rest else None)
        numa.append(int(rest[1]) if len(rest) > 1 and re.fullmatch(r"\d{1,4}", rest[1]) else None)
    return GpuLinks(num_gpus, links, tuple(cores), tuple(numa), tuple(nics))


def _link(cell: str) -> Link:
    match = re.fullmatch(r"NV(\d{1,3})", cell)
    if match is not None:
        return Link(Near.NVLINK, int(match[1]))
    return Link(_KINDS.get(cell, Near.UNKNOWN))


def _nic_names(lines: Sequence[str]) -> dict[str, str]:
    """ "NIC0" -> "mlx5_0", of the legend that newer versions print."""
    found = (re.match(r"\s*(NIC\d+):\s*(\S+)\s*$", line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}


def nested_groups(links: GpuLinks) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Groupings of the GPUs from the nearest links to the farthest; each refines the next.

    Complete linkage at every kind of link that is there; groups are in order of their lowest GPU.
    """
    levels = sorted(set(links.links.values()), reverse=True)
    groups: list[tuple[int, ...]] = [(gpu,) for gpu in range(links.num_gpus)]
    nested: list[tuple[tuple[int, ...], ...]] = []
    for level in levels:
        merged = True
        while merged:
            merged = False
            for a in range(len(groups)):
                for b in range(a + 1, len(groups)):
                    if all(links.link(x, y) >= level for x in groups[a] for y in groups[b]):
                        groups[a] = tuple(sorted(groups[a] + groups[b]))
                        del groups[b]
                        merged = True
                        break
                if merged:
                    break
        grouping = tuple(sorted(groups))
        if not nested or nested[-1] != grouping:
            nested.append(grouping)
    return tuple(nested)


def islands_of(links: GpuLinks) -> tuple[tuple[int, ...], ...]:
    """The node's islands: the largest groups whose members are joined without crossing between sockets.

    NVLink, where it is there, sets the bound (an island is then an NVLink domain); else everything nearer than SYS
    counts as one island, for the step from one socket to the other is the one that costs. GPUs inside an island are in the
    order that keeps nearer ones adjacent, so that cutting it from the left gives NVLink pairs before others.
    """
    if links.num_gpus < 2:
        return tuple((gpu,) for gpu in range(links.num_gpus))
    has_nvlink = any(link.near is Near.NVLINK for link in links.links.values())
    least = Near.NVLINK if has_nvlink else Near.NODE
    chosen: tuple[tuple[int, ...], ...] = tuple((gpu,) for gpu in range(links.num_gpus))
    within = nested_groups(links)
    for grouping in within:
        if all(
            links.link(x, y).near >= least
            for group in grouping
            for i, x in enumerate(group)
            for y in group[i + 1 :]
        ):
            chosen = grouping
    order = near_order(links)
    return tuple(tuple(sorted(island, key=order.index)) for island in chosen)


def near_order(links: GpuLinks) -> tuple[int, ...]:
    """All GPUs, such that those of each nested group stand together."""
    order: list[tuple[int, ...]] = [(gpu,) for gpu in range(links.num_gpus)]
    for grouping in nested_groups(links):
        order = [tuple(gpu for part in order if part[0] in set(group) for gpu in part) for group in grouping]
    return tuple(gpu for part in order for gpu in part)
