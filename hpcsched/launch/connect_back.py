"""Whether a compute node can connect to this process: asked by one short step, before a driver relies on it.

On many sites a login node lets nobody in. Slurm's own srun is often let through (`SrunPortRange`), so that steps can be
made from there although no supervisor could ever talk to a driver there.

Run on the node as `python -m hpcsched.launch.connect_back PORT ADDRESS...`; prints one JSON line.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hpcsched.errors import CommandError
from hpcsched.launch.allocation import Allocation, RunCommand
from hpcsched.launch.environment import srun_environment
from hpcsched.launch.steps import helper_step

CONNECT_S = 3.0
STEP_TIMEOUT_S = 60.0
WORD = b"hpcsched\n"


class Reached(msgspec.Struct, frozen=True):
    """What one node found."""

    node: str
    address: str | None
    """The first address that answered with our word; None: none did."""
    why: str = ""


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """A port of this host, on all addresses, that says our word to whoever connects, while the block runs."""
    with socket.create_server(("", 0), backlog=128) as server:
        server.settimeout(0.2)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(CONNECT_S)
                    connection.sendall(WORD)

        thread = threading.Thread(target=serve, daemon=True, name="hpcsched-connect-back")
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            over.set()
            thread.join()


def ask_node(
    allocation: Allocation,
    node: str,
    port: int,
    addresses: Sequence[str],
    environ: Mapping[str, str],
    run_command: RunCommand,
    *,
    srun_args: Sequence[str] = (),
    python: str = sys.executable,
    timeout_s: float = STEP_TIMEOUT_S,
) -> Reached:
    """Let one node try. Raises CommandError when the step itself fails: that says nothing about the network."""
    command = (python, "-P", "-m", "hpcsched.launch.connect_back", str(port), *addresses)
    step = helper_step(node, command, name="hpcsched-connect-back", srun_args=srun_args)
    env = srun_environment(environ) | {"SLURM_JOB_ID": allocation.job_id}
    text = run_command(step.argv, timeout_s=timeout_s, env=env)
    for line in text.splitlines():
        with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
            return msgspec.json.decode(line, type=Reached)
    raise CommandError(step.argv, 0, text, "it printed no answer")


def try_addresses(node: str, port: int, addresses: Sequence[str]) -> Reached:
    """The first address at which our own process answers."""
    problems: list[str] = []
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=CONNECT_S) as connection:
                connection.settimeout(CONNECT_S)
                if connection.recv(len(WORD)) == WORD:
                    return Reached(node, address)
                problems.append(f"{address}:{port}: somebody else answers")
        except OSError as error:
            problems.append(f"{address}:{port}: {error.strerror or error}")
    return Reached(node, None, "; ".join(problems) or "no address to try")


def main() -> None:
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    reached = try_addresses(node, int(sys.argv[1]), sys.argv[2:])
    sys.stdout.write(msgspec.json.encode(reached).decode() + "\n")


if __name__ == "__main__":
    main()
