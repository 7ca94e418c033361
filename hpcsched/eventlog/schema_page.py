"""The documentation of log.h5, made from the schema: `python -m hpcsched.eventlog.schema_page > .../log_schema.md`."""

from __future__ import annotations

import sys

import numpy as np

from hpcsched.eventlog import schema
from hpcsched.eventlog.records import SCHEMA_VERSION

_HEAD = f"""\
# The log: `log.h5` and the journal

*Made from the code by `python -m hpcsched.eventlog.schema_page`; schema version {SCHEMA_VERSION}.*

`RUN/journal/000N.jsonl` is the truth: what happened (events), what was decided (actions) and why, as JSON lines with a checksum,
one file for each life of the driver. `RUN/log.h5` is sealed from it: always a closed, complete file that any HDF5 tool opens
(`h5dump -H RUN/log.h5`), replaced as a whole now and then and at the end. It can be made again at any time:

```
python -m hpcsched.eventlog.seal RUN
```

In Python, `hpcsched.load("RUN")` gives each table as a NumPy structured array (text as `str`), and
`hpcsched.load("RUN").frame("results")` as a pandas frame where pandas is installed. When the log is older than the journal it
is sealed first.

```python
import hpcsched

log = hpcsched.load("RUN")
print(log.best, log.atom_seconds)
last = log.results[log.results["trial_id"] == log.best["trial_id"]][-1]
print(last["training_iteration"], last["metric"])
```

Times are seconds since the experiment began. HDF5 knows no "unknown": an unknown float is NaN, an absent id is -1. Strings are
variable-length UTF-8 (h5py gives them as bytes inside a table). Each dataset has the attributes `description`, and for each column
`COLUMN.description` and `COLUMN.units`.
"""

_JOURNAL = """\
## The journal's lines

A line is `{"crc32":"...","record":{...}}`; the checksum (CRC-32, continued from the line before) is over the bytes of the record. So
`jq .record RUN/journal/0001.jsonl` reads it. Kinds of records:

| kind | what it is |
| --- | --- |
| `header` | first line of a file: the experiment file's text, the core's settings, when it began, versions, and how far this life has read the files of earlier lives (what is written there later does not count) |
| `step` | one event with the actions that the core answered; `n` counts from 1 over all lives |
| `note` | a fact of the driver that the core does not see: `topic` is `metrics`, `setup`, `warning`, ... |
| `end` | the life ended in order |

On a slow disk a line can also hold `"durable":N` before `"record"`: so many bytes of the file were durable when it was written (the
checksum is over the digits and the record). A last line without its end is what a killed driver leaves: it was never acknowledged and is
dropped. So is a hole of NUL bytes, which a node that dies can leave, when all lines behind it say that they were written before it was
durable. Any other line that is not what was
written is an error that names file, line and byte; nothing is skipped.
"""


def page() -> str:
    parts = [_HEAD, "## Attributes of the root\n", "| name | what it is |\n| --- | --- |"]
    parts += [f"| `{name}` | {meaning} |" for name, meaning in schema.ROOT_ATTRIBUTES.items()]
    for table in schema.TABLES:
        parts += [
            f"\n## `{table.name}`\n\n{table.meaning[0].upper()}{table.meaning[1:]}.\n",
            "| column | type | unit | what it is |\n| --- | --- | --- | --- |",
        ]
        parts += [
            f"| `{column.name}` | {_type(column)} | {column.unit} | {column.meaning} |"
            for column in table.columns
        ]
    return "\n".join(parts) + "\n\n" + _JOURNAL


def _type(column: schema.Column) -> str:
    dtype = np.dtype(column.dtype)
    return "text" if dtype.hasobject else {"i8": "integer", "f8": "float"}[dtype.str[1:]]


if __name__ == "__main__":
    sys.stdout.write(page())
