"""One record <-> one line of a segment.

    {"crc32":"5f1c2a90","record":{"kind":"step", ...}}\\n

A line is JSON by itself, so that `jq .record` reads a journal. The checksum is zlib's CRC-32 (RFC 1952) over the
bytes of the record, *continued* from the line before (0 at the start of a segment): a flipped byte, and also a
line that is missing, doubled or out of order, shows at the very line where the file is no longer what was written.

JSON escapes control characters, so neither a line feed nor a NUL is ever inside a line.
"""

from __future__ import annotations

import zlib

import msgspec

from hpcsched.eventlog.records import Record

_PREFIX = b'{"crc32":"'
_MIDDLE = b'","record":'
_SUFFIX = b"}\n"
_RECORD_AT = len(_PREFIX) + 8 + len(_MIDDLE)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class LineError(ValueError):
    """A line that is not what was written; the reader adds the file and the position."""


def encode_record(record: Record) -> bytes:
    """The record's bytes, without checksum. Raises TypeError for a value that JSON cannot hold."""
    return _encoder.encode(record)


def line_of(payload: bytes, previous_crc: int) -> tuple[bytes, int]:
    """The line with its line feed, and the checksum to go on from."""
    crc = zlib.crc32(payload, previous_crc)
    return b"".join((_PREFIX, b"%08x" % crc, _MIDDLE, payload, _SUFFIX)), crc


def record_of(line: bytes, previous_crc: int) -> tuple[Record, int]:
    """The record in a line (without or with its line feed), and the checksum to go on from. Raises LineError."""
    line = line.removesuffix(b"\n")
    payload = line[_RECORD_AT:-1]
    crc = zlib.crc32(payload, previous_crc)
    if line != b"".join((_PREFIX, b"%08x" % crc, _MIDDLE, payload, b"}")):
        raise LineError(_what_is_wrong(line, payload, crc))
    try:
        return _decoder.decode(payload), crc
    except (msgspec.DecodeError, RecursionError) as error:
        raise LineError(f"the checksum is right but it is no record of this version: {error}") from error


def _what_is_wrong(line: bytes, payload: bytes, crc: int) -> str:
    if not line.startswith(_PREFIX) or line[_RECORD_AT - len(_MIDDLE) : _RECORD_AT] != _MIDDLE or not payload:
        return f"it does not have the form of a record: {line[:60]!r}"
    said = line[len(_PREFIX) : len(_PREFIX) + 8]
    return f"its checksum is {said.decode('ascii', 'replace')!r}, the bytes before and in it give '{crc:08x}'"
