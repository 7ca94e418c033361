"""Hostile bytes for all that reads them: `python -m tests.faults.fuzz --inputs 20000 [--seed S] [--json]`.

Good samples are mutated (bits, bytes, slices, lengths, numbers, splices of two samples) and given to: the decoders of wire messages and
headers, the journal's lines (with wrong and with right checksums), orders in `control/`, experiment files, and the parsers of what
Slurm, nvidia-smi and users write. Each either returns or raises the error that it promises. Prints {"inputs", "findings",
"slowest_s", "grown_mb"}; a finding is any other exception, an input that took longer than `SLOW_S`, or memory beyond `GROWN_MB`.

What was found stays in tests/faults/test_fuzz.py, by hand, as a test of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from hpcsched import wire
from hpcsched.channel.link import Link
from hpcsched.config.deadline import clock_time, parse_deadline
from hpcsched.config.duration import parse_duration
from hpcsched.config.load import parse_document, spec_of
from hpcsched.driver.control import Letterbox, take_answer
from hpcsched.errors import ExperimentFileError, HpcschedError, MessageError
from hpcsched.eventlog.lines import LineError, encode_record, line_of, record_of
from hpcsched.eventlog.records import Note
from hpcsched.launch.nodelist import expand_nodelist
from hpcsched.launch.srunerrors import classify, failed_nodelists
from hpcsched.launch.tails import clean, gpu_failure_in, tells_out_of_memory
from hpcsched.orders import AddAsked, Answer, ExtendAsked, Order, StopAsked, encode_order
from hpcsched.runfolder import RunFolder
from hpcsched.topology import slurmtext
from hpcsched.topology.links import parse_topo_matrix
from tests.support.experiments import NOW, VALID
from tests.support.journals import a_header, a_step

SLOW_S = 5.0
GROWN_MB = 300.0
Target = Callable[[bytes], None]
FIXTURES = Path(__file__).resolve().parent.parent / "topology" / "fixtures"


def wire_samples() -> list[bytes]:
    messages: list[wire.ToDriver | wire.FromDriver] = [
        wire.RankHello(1, 2, pid=3, world_size=4, setup_s={"imports": 1.5}, restored_iteration=0),
        wire.Report(1, 2, seq=3, training_iteration=3, metrics={"accuracy": 0.5, "loss": None}, time_this_iter_s=1.0, extra={"x": 1.0}, problems={"loss": "nan"}),
        wire.SavedCheckpoint(1, 2, training_iteration=3, save_s=0.5, num_bytes=10**12),
        wire.CheckpointTrouble(1, 2, training_iteration=3, why="disk full"),
        wire.Leaving(1, 2, how="preempted", training_iteration=3),
        wire.SupervisorHello(1, 2, node="n1", pid=3, step_id="7.1", devices=("0",), cores=(0, 1)),
        wire.Heartbeat(1, 2, node="n1"),
        wire.RanksStarted(1, 2, node="n1", pids={0: 1}),
        wire.RankExited(1, 2, node="n1", rank=0, code=-9, tail="x" * 50),
        wire.SupervisorGoodbye(1, 2, node="n1", exits={0: 0}),
        wire.Reply(1, 2, seq=3, leave="stop"),
        wire.TakeTrial(1, 0, launch_file="/x"),
    ]  # fmt: skip
    return [wire.encode(message) for message in messages]


def read_wire(data: bytes) -> None:
    for decode in (wire.decode_to_driver, wire.decode_from_driver):
        try:
            decode(data)
        except MessageError as error:
            str(error)
    link = Link(7, max_kept=4, leads=data[:1] < b"\x80")
    link.put(b"x")
    try:
        link.take(data[:37])
    except MessageError as error:
        str(error)


def line_samples() -> list[bytes]:
    note = Note(time=1.0, topic="x", text="\x1b[2J", data={"a": [1, None, {"b": 2.5}]})
    return [
        line_of(encode_record(record), 0)[0]
        for record in (a_header(), a_step(1), a_step(2, metric=None), note)
    ]


def read_line(data: bytes) -> None:
    for line in (data, line_of(data[31:-2], 0)[0]):
        try:
            record_of(line, 0)
        except LineError as error:
            str(error)


class Orders:
    """Files in `control/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)
        self._folder.control.mkdir(parents=True)
        self._box = Letterbox(self._folder)

    def __call__(self, data: bytes) -> None:
        file = self._folder.control / "1.json"
        file.write_bytes(data)
        letters, complaints = self._box.look()
        assert len(letters) + len(complaints) == 1
        for letter in letters:
            encode_record(
                Note(0.0, "order", data=msgspec.to_builtins(letter.order))
            )  # the journal can hold it
            assert not self._box.answer(letter, Answer(letter.order.order_id, False, "no"))
            assert take_answer(self._folder, letter.order.order_id) is not None
        assert not list(self._folder.control.iterdir())
        self._box.look()


class Experiments:
    """Texts of an experiment file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "experiment.toml"
        (folder / "train.sh").touch()

    def __call__(self, data: bytes) -> None:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return
        try:
            document = parse_document(self._file, text)
            spec_of(
                document, file=self._file, text=text, overrides={}, folder=None, simulate=None,
                environ={"PATH": "/usr/bin:/bin"}, now=NOW,
            )  # fmt: skip
        except ExperimentFileError as error:
            str(error).encode()


def texts() -> list[bytes]:
    return [
        *(file.read_bytes()[:6000] for file in sorted(FIXTURES.rglob("*")) if file.is_file()),
        b"n[1-4,7],m3", b"2-00:30:00", b"1h30m", b"2026-11-30T07:00", b"17:30", b"slurm 22.05.8", b"gpu:a100:4(IDX:0-1,3)",
        b"srun: error: Unable to create step for job 7: Requested nodes are busy", b"srun: error: Node failure on n[1-2]",
        b"torch.OutOfMemoryError: CUDA out of memory", b"\x1b]0;x\x07\x1b[2J", b'"9:00" "in 2h"',
    ]  # fmt: skip


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")[:1000])


def read_text(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for parse in (
        slurmtext.parse_time_limit, slurmtext.parse_version, slurmtext.parse_memory_mb, slurmtext.parse_id_list, slurmtext.parse_gres,
        slurmtext.parse_show_node, parse_topo_matrix, classify, failed_nodelists, tells_out_of_memory, gpu_failure_in,
    ):  # fmt: skip
        parse(text)
    slurmtext.parse_show_job(text, names)
    slurmtext.parse_topology(text, names)
    slurmtext.parse_job_json(text, "7")
    slurmtext.parse_topology_address(text[:200], text[-200:])
    safe = clean(text)
    assert not any(ord(sign) < 32 and sign not in "\n\t" for sign in safe), (
        f"control characters are left: {safe!r}"
    )
    for read in (parse_duration, parse_deadline, lambda short: clock_time(short, NOW), expand_nodelist):
        try:
            read(text[:60])  # type: ignore[operator]  # of several types
        except (ValueError, HpcschedError) as error:
            str(error)


TOKENS = [
    b"\0", b"\xff", b"\x80", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"[" * 200, b"{" * 200,
    b"\x91" * 600, b"\x81\xa1a" * 300, b"-1", b"1e999", b"9" * 400, b"NaN", b"null", b"true", b'"', b"'", b"\\u0000", b"\n", b"\r", b"=",
    b"[0-999999999]", b"0-99999999", b"[[[", b"]]]", b"1-2-3", "²".encode(), "\u202e".encode(), b"\x1b[2J", b"$(x)", b"; x", b"../../", b"%s%n",
    b"nan", b"inf", b"[table]\n", b"a.b.c=1\n", b"1979-05-27T07:32:00Z", b"24:60", b"99999999h", b"(IDX:0-9999999)",
]  # fmt: skip


def mutated(rng: Random, samples: list[bytes]) -> bytes:
    data = bytearray(rng.choice(samples))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0 if data:
                data[min(at, len(data) - 1)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[min(at, len(data) - 1)] = rng.randrange(256)
            case 2:
                del data[at : at + rng.choice((1, 2, 8, 100))]
            case 3:
                data[at:at] = rng.choice(TOKENS)
            case 4:
                other = rng.choice(samples)
                cut = rng.randrange(len(other) + 1)
                data[at:] = other[cut:]
            case 5:
                data[at:at] = data[at : at + rng.choice((1, 4, 50))]
            case 6:
                data[at : at + rng.choice((1, 4))] = rng.choice(TOKENS)
            case _:
                data[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
    return bytes(data[:20_000])


def fuzz(num: int, seed: int, complain: Callable[[str], None]) -> dict[str, float]:
    def too_slow(*_: object) -> None:
        raise TimeoutError(f"it takes longer than {SLOW_S:g} s")

    signal.signal(signal.SIGALRM, too_slow)
    rng = Random(seed)
    num_findings, slowest_s = 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        orders = [
            encode_order(Order("0123456789abcdef" * 2, 1, ask))
            for ask in (
                StopAsked(),
                StopAsked(3),
                ExtendAsked(60.0),
                AddAsked({"x": [1, {"y": None}]}),
            )
        ]
        targets: list[tuple[str, float, list[bytes], Target]] = [
            ("wire", 0.4, wire_samples(), read_wire),
            ("journal", 0.3, line_samples(), read_line),
            ("orders", 0.05, orders, Orders(root / "run")),
            ("experiment", 0.1, [VALID.encode()], Experiments(root)),
            ("texts", 0.15, texts(), read_text),
        ]
        before_mb = _rss_mb()
        for what, share, samples, target in targets:
            for _ in range(max(1, round(share * num))):
                data = mutated(rng, samples)
                began = time.perf_counter()
                try:
                    signal.setitimer(signal.ITIMER_REAL, SLOW_S)
                    target(data)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    took_s = time.perf_counter() - began
                    if took_s > SLOW_S:
                        raise TimeoutError(f"{took_s:.1f} s")
                except Exception:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    took_s = time.perf_counter() - began
                    num_findings += 1
                    if num_findings <= 20:
                        complain(f"{what}: {data!r}\n{traceback.format_exc(limit=-4)}")
                slowest_s = max(slowest_s, took_s)
        grown_mb = _rss_mb() - before_mb
        if grown_mb > GROWN_MB:
            num_findings += 1
            complain(f"memory grew by {grown_mb:.0f} MB")
    return {
        "inputs": num,
        "findings": num_findings,
        "slowest_s": round(slowest_s, 3),
        "grown_mb": round(grown_mb, 1),
    }


def _rss_mb() -> float:
    """The most it ever was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    result = fuzz(given.inputs, given.seed, lambda text: print(text, file=sys.stderr))
    print(
        json.dumps(result) if given.json else ", ".join(f"{name} {value}" for name, value in result.items())
    )
    return 0 if not result["findings"] else 1


if __name__ == "__main__":
    sys.exit(main())
