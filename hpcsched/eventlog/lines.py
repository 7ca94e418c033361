"""One record <-> one line of a segment.

    {"crc32":"5f1c2a90","record":{"kind":"step", ...}}\\n

A line is JSON by itself, so that `jq .record` reads a journal. The checksum is zlib's CRC-32 (RFC 1952) over the
bytes of the record, *continued* from the line before (0 at the start of a segment): a flipped byte, and also a
line that is missing, doubled or out of order, shows at the very line where the file is no longer what was written.

A line that is written while syncs of earlier ones are still under way (see `journal`) also says how many bytes of the segment
were durable then; the checksum is over these digits and the record::

    {"crc32":"5f1c2a90","durable":81920,"record":{"kind":"step", ...}}\\n

JSON escapes control characters, so neither a line feed nor a NUL is ever inside a line.
"""

from __future__ import annotations

import zlib

import msgspec

from hpcsched.eventlog.records import Record

_PREFIX = b'{"crc32":"'
_DURABLE = b'","durable":'
_MIDDLE = b'","record":'
_AFTER_DURABLE = b',"record":'
_SUFFIX = b"}\n"
_RECORD_AT = len(_PREFIX) + 8 + len(_MIDDLE)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class LineError(ValueError):
    """A line that is not what was written; the reader adds the file and the position."""


def encode_record(record: Record) -> bytes:
    """The record's bytes, without checksum. Raises TypeError for a value that JSON cannot hold."""
    return _encoder.encode(record)


def line_of(payload: bytes, previous_crc: int, durable: int | None = None) -> tuple[bytes, int]:
    """The line with its line feed, and the checksum to go on from. `durable`: bytes of the segment that are durable now."""
    if durable is None:
        crc = zlib.crc32(payload, previous_crc)
        return b"".join((_PREFIX, b"%08x" % crc, _MIDDLE, payload, _SUFFIX)), crc
    digits = b"%d" % durable
    crc = zlib.crc32(payload, zlib.crc32(digits, previous_crc))
    return b"".join((_PREFIX, b"%08x" % crc, _DURABLE, digits, _AFTER_DURABLE, payload, _SUFFIX)), crc


def record_of(line: bytes, previous_crc: int) -> tuple[Record, int]:
    """The record in a line (without or with its line feed), and the checksum to go on from. Raises LineError."""
    line = line.removesuffix(b"\n")
    durable = durable_of(line)
    if durable is None:
        payload = line[_RECORD_AT:-1]
    else:
        payload = line[line.index(_AFTER_DURABLE) + len(_AFTER_DURABLE) : -1]
    right, crc = line_of(payload, previous_crc, durable)
    if line != right[:-1]:
        raise LineError(_what_is_wrong(line, payload, crc))
    try:
        return _decoder.decode(payload), crc
    except (msgspec.DecodeError, RecursionError) as error:
        raise LineError(f"the checksum is right but it is no record of this version: {error}") from error


def durable_of(line: bytes) -> int | None:
    """How many bytes of the segment were durable when this line was written; None when it does not say so."""
    begin = len(_PREFIX) + 8
    if not line.startswith(_PREFIX) or not line.startswith(_DURABLE, begin):
        return None
    begin += len(_DURABLE)
    digits = line[begin : line.find(_AFTER_DURABLE, begin, begin + 20)]
    return int(digits) if digits.isdigit() else None


def _what_is_wrong(line: bytes, payload: bytes, crc: int) -> str:
    begin = len(_PREFIX) + 8
    if not (
        line.startswith(_PREFIX)
        and payload
        and (line.startswith(_MIDDLE, begin) or durable_of(line) is not None)
    ):
        return f"it does not have the form of a record: {line[:60]!r}"
    said = line[len(_PREFIX) : len(_PREFIX) + 8]
    return f"its checksum is {said.decode('ascii', 'replace')!r}, the bytes before and in it give '{crc:08x}'"
