"""`python -m hpcsched.launch.probe_node`: print what one node is, as one line ``hpcsched-probe {json}``.

Runs as one task a node of a short step. Reads `/proc`, `/sys`, the environment, and `nvidia-smi` where it is on PATH; a
source that fails is a sentence in `warnings`, never an exit code: a node that says half is better than none.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from hpcsched.topology.facts import GpuFact, NodeFacts, NumaFact
from hpcsched.topology.slurmtext import parse_id_list

MARK = "hpcsched-probe "
"""Begins the one line that counts; a site's prologue may print others."""

VISIBLE = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "SLURM_STEP_GPUS",
    "GPU_DEVICE_ORDINAL",
)
"""Where Slurm puts a step's GPUs, by gres.conf flags; the first that is set counts."""

SLINGSHOT = "SLINGSHOT_VNIS"
"""Set in each step over several nodes where Slurm's switch plugin is that of HPE Slingshot (a step on one node gets VNIs where the
site, or `--network=single_node_vni`, says so: that is why a spare cannot see it)."""
_SMI_TIMEOUT_S = 30.0
_SIOCGIFADDR = 0x8915


def main() -> None:
    facts = read_node(os.environ)
    sys.stdout.write(MARK + msgspec.json.encode(facts).decode() + "\n")
    sys.stdout.flush()


def read_node(
    environ: Mapping[str, str], *, proc: Path = Path("/proc"), sys_root: Path = Path("/sys")
) -> NodeFacts:
    """What this computer is, for a step (or a local run) with this environment."""
    warnings: list[str] = []
    smi = _NvidiaSmi(environ, warnings)
    gpus, rule = gpus_of(environ, smi)
    return NodeFacts(
        node=environ.get("SLURMD_NODENAME") or socket.gethostname(),
        gpus=gpus,
        gpu_rule=rule,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        num_cores_online=os.cpu_count() or 1,
        core_groups=core_groups(sys_root),
        numa=numa_of(sys_root),
        memory_mb=memory_of(proc, sys_root),
        addresses=addresses(),
        topology_address=environ.get("SLURM_TOPOLOGY_ADDR", ""),
        topology_pattern=environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", ""),
        links_text=smi("topo", "-m") if gpus else "",
        driver_version=smi.driver_version,
        slingshot=SLINGSHOT in environ,
        python=platform.python_version(),
        hostname=socket.gethostname(),
        warnings=tuple(warnings),
    )


class _NvidiaSmi:
    """Asks nvidia-smi; "" where it is not there, or fails (then once a warning)."""

    def __init__(self, environ: Mapping[str, str], warnings: list[str]) -> None:
        self._path = shutil.which("nvidia-smi", path=environ.get("PATH"))
        self._env = {**environ, "LC_ALL": "C"}
        self._warnings = warnings
        self.driver_version: str | None = None

    def __call__(self, *args: str) -> str:
        if self._path is None:
            return ""
        try:
            done = subprocess.run(
                [self._path, *args],
                env=self._env,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SMI_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self._path = None  # a driver that hangs once hangs again
            self._warnings.append(f"nvidia-smi {' '.join(args)}: {error}")
            return ""
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines()
            self._warnings.append(
                f"nvidia-smi {' '.join(args)}: {told[-1] if told else f'code {done.returncode}'}"
            )
            return ""
        return done.stdout


def gpus_of(
    environ: Mapping[str, str], smi: _NvidiaSmi | Callable[..., str]
) -> tuple[tuple[GpuFact, ...], str]:
    """(GPUs that may be used, which source gave them). In PCI order, MIG instances each one GPU."""
    known = query_gpus(smi)
    if isinstance(smi, _NvidiaSmi) and known:
        smi.driver_version = known[0][1]
    cards = [card for card, _ in known]
    visible: list[str] | None = None
    rule = "none"
    for name in VISIBLE:
        if name in environ:
            visible, rule = visible_ids(environ[name]), name
            break
    if visible is None:
        instances = mig_instances(smi) if cards else {}
        found = [
            fact
            for card in cards
            for fact in (
                [
                    GpuFact(index="", visible=mig, uuid=mig, name=f"{card.name} MIG", pci=card.pci)
                    for mig in instances[card.uuid]
                ]
                if card.uuid in instances
                else [card]
            )
        ]
        return _numbered(found), "nvidia-smi" if found else "none"
    by_uuid = {card.uuid: card for card in cards}
    facts: list[GpuFact] = []
    # Where devices are confined, nvidia-smi lists those of the step only, and its numbers are the step's.
    for position, name in enumerate(visible):
        card: GpuFact | None = None
        if name.isdecimal() and name.isascii():
            number = int(name)
            if number < len(cards):
                card = cards[number]
            elif len(cards) == len(visible):
                card = cards[position]
        else:
            card = by_uuid.get(name) or next(
                (c for c in cards if c.uuid and name.startswith("GPU-") and c.uuid.startswith(name)), None
            )
        facts.append(
            GpuFact(index="", visible=name, uuid=name if "-" in name else None)
            if card is None
            else msgspec.structs.replace(card, visible=name)
        )
    return _numbered(facts), rule


def _numbered(facts: Sequence[GpuFact]) -> tuple[GpuFact, ...]:
    ordered = sorted(facts, key=lambda fact: fact.pci or "") if all(f.pci for f in facts) else list(facts)
    return tuple(msgspec.structs.replace(fact, index=str(i)) for i, fact in enumerate(ordered))


def visible_ids(text: str) -> list[str]:
    """Ids in CUDA_VISIBLE_DEVICES: numbers, UUIDs, MIG ids. CUDA stops at the first that is no device ("-1",
    "NoDevFiles", ""): so do we (CUDA C Programming Guide, Environment Variables)."""
    ids: list[str] = []
    for piece in text.split(","):
        name = piece.strip()
        if not name or name == "NoDevFiles" or name.startswith("-"):
            break
        if name in ids:
            break
        ids.append(name)
    return ids


def query_gpus(smi: Callable[..., str]) -> list[tuple[GpuFact, str]]:
    """(GPU, driver version) for each that nvidia-smi lists, in its order, which is PCI order."""
    text = smi(
        "--query-gpu=index,uuid,pci.bus_id,memory.total,memory.used,driver_version,name",
        "--format=csv,noheader,nounits",
    )
    found: list[tuple[GpuFact, str]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", 6)]
        if len(cells) < 7 or not cells[0].isdecimal():
            continue
        fact = GpuFact(
            index=cells[0],
            visible=cells[0],
            uuid=cells[1],
            pci=cells[2],
            memory_mb=_whole(cells[3]),
            used_mb=_whole(cells[4]),
            name=cells[6],
        )
        found.append((fact, cells[5]))
    return found


def mig_instances(smi: Callable[..., str]) -> dict[str | None, list[str]]:
    """GPU UUID -> UUIDs of its MIG instances, from `nvidia-smi -L`."""
    instances: dict[str | None, list[str]] = {}
    gpu: str | None = None
    for line in smi("-L").splitlines():
        match = re.search(r"\(UUID:\s*([^)\s]+)\)", line)
        if match is None:
            continue
        if line.startswith("GPU "):
            gpu = match[1]
        elif line.lstrip().startswith("MIG "):
            instances.setdefault(gpu, []).append(match[1])
    return instances


def numa_of(sys_root: Path) -> tuple[NumaFact, ...]:
    """The kernel's NUMA nodes that have cores."""
    facts: list[NumaFact] = []
    for folder in sorted((sys_root / "devices/system/node").glob("node[0-9]*")):
        try:
            cores = parse_id_list((folder / "cpulist").read_text()) or ()
            match = re.search(r"MemTotal:\s+(\d+) kB", (folder / "meminfo").read_text())
        except OSError:
            continue
        if cores:
            facts.append(
                NumaFact(int(folder.name[4:]), cores, None if match is None else int(match[1]) // 1024)
            )
    return tuple(sorted(facts, key=lambda fact: fact.numa))


def core_groups(sys_root: Path) -> tuple[tuple[int, ...], ...]:
    """Hardware threads of one physical core, of those that have more than one."""
    groups = {
        parse_id_list(_read(file)) or ()
        for file in (sys_root / "devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    }
    return tuple(sorted(group for group in groups if len(group) > 1))


def memory_of(proc: Path, sys_root: Path) -> int | None:
    """Mebibytes of the computer, or of the tightest memory cgroup around this process."""
    limits: list[int] = []
    try:
        match = re.search(r"MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text())
        if match is not None:
            limits.append(int(match[1]) // 1024)
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            unified = not controllers
            if not unified and "memory" not in controllers.split(","):
                continue
            root = sys_root / "fs/cgroup" / ("" if unified else "memory")
            folder = root / path.lstrip("/")
            name = "memory.max" if unified else "memory.limit_in_bytes"
            while True:
                text = _read(folder / name).strip()
                if text.isdecimal():
                    limits.append(int(text) >> 20)
                if folder == root or root not in folder.parents:
                    break
                folder = folder.parent
    except (OSError, ValueError):
        pass
    return min(limits, default=None)


def addresses() -> dict[str, str]:
    """Interface -> IPv4 address of those that are up and have one (netdevice(7), SIOCGIFADDR)."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            address = socket.inet_ntoa(reply[20:24])
            if not address.startswith("127."):
                found[name] = address
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


if __name__ == "__main__":
    main()
