"""`python -m hpcsched.eventlog.seal RUN [--follow]`: make log.h5, as a process of its own.

The driver starts it, so that nothing that HDF5 does can stop or break the driver. With `--follow` it reads the journal along while it is
written, one order a line on standard input (`Order`), each answered by "done"; it ends with its standard input, and ignores
the signals that end a driver, which has a last order to give then.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hpcsched.errors import HpcschedError
from hpcsched.eventlog.hdf5 import LogMaker, seal
from hpcsched.eventlog.sealorders import DONE, Order
from hpcsched.runfolder import RunFolder


def follow(folder: RunFolder) -> None:
    """Raises as `LogMaker`, ValueError for what is no order."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    maker = LogMaker(folder)
    try:
        for line in sys.stdin.buffer:
            order = Order(line.decode().strip())
            maker.poll()
            if order is not Order.POLL:
                maker.publish(last=order is Order.FINISH)
            os.write(sys.stdout.fileno(), DONE)
            if order is Order.FINISH:
                return
    finally:
        maker.close()


def main(argv: list[str]) -> int:
    if len(argv) not in (2, 3) or argv[2:] not in ([], ["--follow"]):
        print(f"usage: python -m {__spec__.name} RUN [--follow]", file=sys.stderr)
        return 2
    folder = RunFolder(Path(argv[1]))
    try:
        if argv[2:]:
            follow(folder)
        else:
            seal(folder)
    except HpcschedError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    code = main(sys.argv)
    sys.stderr.flush()
    # At once: after a full disk HDF5 would try again to write its abandoned file, and h5py complain for each object of it.
    # (Some of these complaints come before; our own words are the last line.)
    os._exit(code)
