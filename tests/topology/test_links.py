"""`nvidia-smi topo -m`: matrices after public documentation (not seen live), islands and atoms out of them."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.topology.links import (
    GpuLinks,
    Link,
    Near,
    islands_of,
    near_order,
    nested_groups,
    parse_topo_matrix,
)

MACHINES = Path(__file__).parent / "fixtures" / "machines"


def read(name: str) -> GpuLinks:
    links = parse_topo_matrix((MACHINES / f"{name}.topo.txt").read_text())
    assert links is not None
    return links


def test_a_dgx_is_one_island_with_its_nics_and_cores() -> None:
    links = read("dgx-h100")
    assert links.num_gpus == 8
    assert str(links.link(0, 7)) == str(links.link(7, 0)) == "NV18"
    assert islands_of(links) == ((0, 1, 2, 3, 4, 5, 6, 7),)
    assert links.nics[5] == ("mlx5_5",)
    assert links.cores[0] is not None and links.cores[0][:2] == (0, 1) and 167 in links.cores[0]
    assert links.numa == (0, 0, 0, 0, 1, 1, 1, 1)


def test_a_pcie_box_is_two_islands_of_pairs() -> None:
    links = read("pcie-two-sockets")
    assert islands_of(links) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert nested_groups(links)[0] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert links.cores[4] == (*range(10, 20), *range(30, 40))
    assert links.nics[0] == ("mlx4_0",)


def test_columns_without_tabs_and_without_numa_are_read() -> None:
    links = read("four-nvlink-old-driver")
    assert islands_of(links) == ((0, 1, 2, 3),)
    assert links.numa == (None,) * 4
    assert links.cores[3] == tuple(range(36, 48))
    assert links.nics[2] == ("mlx5_0",)


def test_nvlink_bridges_pair_gpus_that_are_not_neighbours() -> None:
    links = read("nvlink-bridges")
    assert islands_of(links) == ((0, 2), (1, 3))
    assert near_order(links) == (0, 2, 1, 3)


def test_columns_that_a_driver_runs_together_cost_only_that_fact() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-45,92-1370\t\tN/A\nGPU1\tNV18\t X \t0-45,92-137\t0\t\tN/A\n"
    links = parse_topo_matrix(text)
    assert links is not None
    assert str(links.link(0, 1)) == "NV18"
    assert links.numa == (None, 0)


@pytest.mark.parametrize(
    "text", ["", "nvidia-smi: command not found", "\tGPU0\tGPU1\nGPU0\t X \n", "\tGPU0\n"]
)
def test_text_without_a_whole_matrix_gives_nothing(text: str) -> None:
    assert parse_topo_matrix(text) is None


@given(st.text(alphabet="GPU01 \tXNV4SYSNIC\n0-9,:mlx_"))
def test_no_text_breaks_the_reader(text: str) -> None:
    parse_topo_matrix(text)


LINKS = st.sampled_from(
    [Link(Near.SYS), Link(Near.NODE), Link(Near.PIX), Link(Near.NVLINK, 2), Link(Near.NVLINK, 4)]
)


@st.composite
def machines(draw: st.DrawFn) -> GpuLinks:
    num = draw(st.integers(1, 6))
    links = {f"{a}-{b}": draw(LINKS) for a, b in combinations(range(num), 2)}
    return GpuLinks(num, links, (None,) * num, (None,) * num, ((),) * num)


@given(machines())
def test_islands_part_the_gpus_and_hold_no_far_pair(links: GpuLinks) -> None:
    islands = islands_of(links)
    assert sorted(gpu for island in islands for gpu in island) == list(range(links.num_gpus))
    nvlink = any(link.near is Near.NVLINK for link in links.links.values())
    least = Near.NVLINK if nvlink else Near.NODE
    for island in islands:
        assert all(links.link(a, b).near >= least for a, b in combinations(island, 2))


@given(machines())
def test_the_nearest_groups_hold_only_the_nearest_links(links: GpuLinks) -> None:
    if links.num_gpus < 2:
        return
    nearest = max(links.links.values())
    for group in nested_groups(links)[0]:
        assert all(links.link(a, b) == nearest for a, b in combinations(group, 2))


@given(machines())
def test_each_grouping_refines_the_next_and_the_order_keeps_groups_together(links: GpuLinks) -> None:
    groupings = nested_groups(links)
    for fine, coarse in pairwise(groupings):
        assert all(any(set(part) <= set(whole) for whole in coarse) for part in fine)
    order = near_order(links)
    assert sorted(order) == list(range(links.num_gpus))
    for grouping in groupings:
        for group in grouping:
            places = sorted(order.index(gpu) for gpu in group)
            assert places == list(range(places[0], places[0] + len(places)))
