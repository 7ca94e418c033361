"""`python -m hpcsched.eventlog.seal RUN`: make log.h5, as a process of its own.

The driver starts it now and then and at its end, so that nothing that HDF5 does can stop or break the driver.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hpcsched.errors import HpcschedError
from hpcsched.eventlog.hdf5 import seal
from hpcsched.runfolder import RunFolder


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(f"usage: python -m {__spec__.name} RUN", file=sys.stderr)
        return 2
    try:
        seal(RunFolder(Path(argv[1])))
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
