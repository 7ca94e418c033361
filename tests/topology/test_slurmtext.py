"""What Slurm prints: fixtures of a real 22.05 cluster, shapes of 24.11, and anything at all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.launch.nodelist import expand_nodelist
from hpcsched.topology.slurmtext import (
    GpuGrant,
    NodeGrant,
    parse_gres,
    parse_id_list,
    parse_job_json,
    parse_memory_mb,
    parse_show_job,
    parse_show_node,
    parse_time_limit,
    parse_topology,
    parse_topology_address,
    parse_version,
)

FIXTURES = Path(__file__).parent / "fixtures"
SEEN = FIXTURES / "slurm-22.05"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("5:07", 307),
        ("1:02:03", 3723),
        ("2-3", 183600),
        ("2-3:04", 183840),
        ("1-02:04:00", 93840),
        ("UNLIMITED", math.inf),
        ("INFINITE", math.inf),
        ("0:00", 0),
        ("INVALID", None),
        ("NONE", None),
        ("NOT_SET", None),
        ("Partition_Limit", None),
        ("", None),
        ("1-", None),
        ("-5", None),
        ("1:2:3:4", None),
        ("٣", None),
    ],
)
def test_every_form_of_a_time_limit_is_read(text: str, seconds: float | None) -> None:
    assert parse_time_limit(text) == seconds


@given(st.integers(0, 10**6), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_time_limit_is_read_as_it_was_written(days: int, hours: int, minutes: int, seconds: int) -> None:
    assert parse_time_limit(f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}") == (
        86400 * days + 3600 * hours + 60 * minutes + seconds
    )


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8", (22, 5)),
        ("slurm 24.11.5", (24, 11)),
        ("slurm 25.05.0-rc1", (25, 5)),
        ("slurm", None),
        ("", None),
    ],
)
def test_the_version_is_read(text: str, version: tuple[int, int] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("gpu:2(IDX:0-1)", GpuGrant(2, (0, 1))),
        ("gpu:a100:4(IDX:0-3)", GpuGrant(4, (0, 1, 2, 3), ("a100",))),
        ("gpu:v100:1(IDX:0),gpu:p100:2(IDX:2,4)", GpuGrant(3, (0, 2, 4), ("v100", "p100"))),
        ("gpu:a100_1g.5gb:7(IDX:0-6)", GpuGrant(7, tuple(range(7)), ("a100_1g.5gb",))),
        ("gpu:a100:8(S:0-1)", GpuGrant(8, None, ("a100",))),
        ("gres:gpu:2", GpuGrant(2)),
        ("gres/gpu=6", GpuGrant(6)),
        ("gpu", GpuGrant(1)),
        ("gpu:h100", GpuGrant(1, None, ("h100",))),
        ("nic:mlx5:2(IDX:0-1),gpu:1(IDX:3)", GpuGrant(1, (3,))),
        ("shard:8(0/8,0/8)", GpuGrant(0, ())),
        ("(null)", GpuGrant(0, ())),
        ("", GpuGrant(0, ())),
    ],
)
def test_gpus_of_a_gres_string(text: str, grant: GpuGrant) -> None:
    assert parse_gres(text) == grant


def test_memory_and_id_lists() -> None:
    assert [parse_memory_mb(text) for text in ("16000", "16000M", "62.50G", "1T", "512K", "x", "")] == [
        16000, 16000, 64000, 1048576, 0, None, None,
    ]  # fmt: skip
    assert parse_id_list("0-2,5") == (0, 1, 2, 5)
    assert parse_id_list("") == ()
    assert [parse_id_list(text) for text in ("N/A", "3-1", "0-99999999", "a")] == [None] * 4


def test_what_a_job_holds_on_unequal_nodes_is_read_as_the_cluster_printed_it() -> None:
    job = parse_show_job((SEEN / "show-job-unequal.txt").read_text(), expand_nodelist)
    assert job.fields["JobState"] == "RUNNING"
    assert job.fields["EndTime"] == "2026-12-01T08:15:10", "not what the job's name says"
    assert job.fields["TimeLimit"] == "1-02:04:00"
    assert job.fields["NodeList"] == "n[1-4]"
    assert [(grant.node, grant.gpus.num if grant.gpus else None) for grant in job.grants] == [
        ("n1", 4),
        ("n2", 4),
        ("n3", 2),
        ("n4", 1),
    ]
    assert job.grants[2] == NodeGrant("n3", GpuGrant(2, (0, 1)), num_cpus=2, memory_mb=16000)


def test_a_jobs_name_and_paths_are_nobodys_fields() -> None:
    text = (
        "JobId=7 JobName=a EndTime=2001-01-01T00:00:00 b\n"
        "   Command=/x EndTime=2002-02-02T00:00:00\n"
        "   StartTime=2026-11-30T06:11:10 EndTime=2026-12-01T08:15:10 Deadline=N/A\n"
    )
    assert parse_show_job(text, expand_nodelist).fields["EndTime"] == "2026-12-01T08:15:10"


def test_nodes_are_read_as_the_cluster_printed_them() -> None:
    nodes = parse_show_node((SEEN / "show-node.txt").read_text())
    assert [(node.name, node.address, node.gpus.num) for node in nodes] == [
        ("n1", "10.77.3.11", 4),
        ("n2", "10.77.3.12", 4),
        ("n3", "10.77.3.13", 2),
        ("n4", "10.77.3.14", 3),
    ]
    assert (nodes[0].state, nodes[0].num_cpus, nodes[0].num_sockets, nodes[0].memory_mb) == (
        "MIXED",
        16,
        1,
        16000,
    )


def test_the_tree_is_read_as_the_cluster_printed_it() -> None:
    switches = parse_topology((SEEN / "show-topology.txt").read_text(), expand_nodelist)
    assert switches == {
        "n1": ("spine", "leaf1"),
        "n2": ("spine", "leaf1"),
        "n3": ("spine", "leaf2"),
        "n4": ("spine", "leaf2"),
    }


def test_the_block_plugin_gives_blocks_as_leaves_and_aggregates_above() -> None:
    text = (
        "BlockName=b1 BlockIndex=0 Nodes=gpu-a[1-2]n[01-02] BlockSize=4\n"
        "BlockName=b2 BlockIndex=1 Nodes=gpu-b1n[01-04] BlockSize=4\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=gpu-a[1-2]n[01-02],gpu-b1n[01-04] BlockSize=8\n"
    )
    switches = parse_topology(text, expand_nodelist)
    assert switches["gpu-a2n01"] == ("b[1-2]", "b1")
    assert switches["gpu-b1n04"] == ("b[1-2]", "b2")
    assert len(switches) == 8


@pytest.mark.parametrize("text", ["", "No topology information available\n", "SwitchName=s0\n", "SwitchName=a Switches=a\n"])  # fmt: skip
def test_where_there_is_no_topology_no_node_has_a_switch(text: str) -> None:
    assert parse_topology(text, expand_nodelist) == {}


def test_switches_in_a_ring_do_not_hang_the_reader() -> None:
    text = "SwitchName=a Nodes=n1\nSwitchName=b Switches=a,c\nSwitchName=c Switches=b\n"
    assert parse_topology(text, expand_nodelist) == {"n1": ("c", "b", "a")}


@pytest.mark.parametrize(
    ("address", "pattern", "path"),
    [
        ("spine.leaf1.n1", "switch.switch.node", ("spine", "leaf1")),
        ("n1", "node", ()),
        ("b1.10.140.71.103", "block.node", ("b1",)),
        ("", "", ()),
        ("leaf1.n1", "switch.switch.node", ()),
        ("s[0-1].leaf.n1", "switch.switch.node", ("s[0-1]", "leaf")),
    ],
)
def test_the_address_that_a_step_has_of_its_node(address: str, pattern: str, path: tuple[str, ...]) -> None:
    assert parse_topology_address(address, pattern) == path


def test_json_of_22_05_and_24_11_say_the_same_things() -> None:
    old = parse_job_json((SEEN / "squeue.json").read_text(), "30001")
    assert old is not None
    assert (old.version, old.states, old.nodelist) == ((22, 5), ("RUNNING",), "n[1-4]")
    assert old.gres_detail == ("gpu:4(IDX:0-3)", "gpu:4(IDX:0-3)", "gpu:2(IDX:0-1)", "gpu:1(IDX:0)")
    assert old.time_limit_s == 93840
    new = parse_job_json((FIXTURES / "slurm-24.11/squeue.json").read_text(), "4711")
    assert new is not None
    assert (new.version, new.states, new.num_restarts) == ((24, 11), ("RUNNING",), 1)
    assert (new.ends_at, new.time_limit_s, new.nodelist) == (1796019681.0, 1800.0, "jwb[0001-0002]")
    assert [parse_gres(text).ids for text in new.gres_detail] == [(0, 1, 2, 3), (1, 3)]
    waiting = parse_job_json((FIXTURES / "slurm-24.11/squeue.json").read_text(), "4712")
    assert waiting is not None
    assert (waiting.ends_at, waiting.time_limit_s) == (None, math.inf)
    assert parse_job_json("{}", "1") is None
    assert parse_job_json("[" * 100_000, "1") is None


PIECES = (
    "JobId=", "NodeName=", "SwitchName=", "BlockName=", "AggregatedBlock=", "Nodes=", "Switches=", "n[1-2]", "GRES=", "gpu:2(IDX:0-1)",
    "CPU_IDs=0-3", "Mem=1G", "(", ")", "[", "]", ",", ":", "=", "-", ".", "0", "9999999999", "\n", "\t", "(null)", "Gres=gpu", "State=", "IDX",
    "²", '{"jobs":[{"job_id":1,"end_time":{}}]}', "null",
)  # fmt: skip
WORDS = st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join)


@given(st.one_of(st.text(), WORDS))
def test_no_text_breaks_a_parser(text: str) -> None:
    expand = lambda names: tuple(names.split(","))  # noqa: E731
    parse_time_limit(text)
    parse_version(text)
    parse_memory_mb(text)
    parse_id_list(text)
    parse_gres(text)
    parse_show_job(text, expand)
    parse_show_node(text)
    parse_topology(text, expand)
    parse_topology_address(text, text)
    parse_job_json(text, "1")


@given(WORDS)
def test_no_node_list_breaks_the_expansion(text: str) -> None:
    assert isinstance(expand_nodelist(text), tuple)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("jwb0001", ("jwb0001",)),
        (
            "gpu-a[1-2]n[01-03]",
            ("gpu-a1n01", "gpu-a1n02", "gpu-a1n03", "gpu-a2n01", "gpu-a2n02", "gpu-a2n03"),
        ),
        ("n[1-2,01-02]", ("n1", "n2", "n01", "n02")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("a1b[1-2],c3", ("a1b1", "a1b2", "c3")),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_node_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand_nodelist(text) == names
