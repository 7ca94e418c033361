from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.eventlog.lines import LineError, encode_record, line_of, record_of
from tests.support.journals import a_header, a_step


def test_a_line_is_json_with_its_checksum_and_record() -> None:
    line, crc = line_of(encode_record(a_step(1)), 0)
    whole = json.loads(line)
    assert whole["crc32"] == f"{crc:08x}"
    assert whole["record"]["event"]["kind"] == "ResultReported"
    assert record_of(line, 0) == (a_step(1), crc)


def test_the_checksum_goes_on_from_the_line_before() -> None:
    _, crc = line_of(encode_record(a_header()), 0)
    line, _ = line_of(encode_record(a_step(1)), crc)
    with pytest.raises(LineError, match="checksum"):
        record_of(line, 0)


@given(st.data())
def test_any_changed_byte_of_a_line_is_found(data: st.DataObject) -> None:
    line, _ = line_of(encode_record(a_step(1)), 7)
    at = data.draw(st.integers(0, len(line) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte not in (line[at], 10)))
    with pytest.raises(LineError):
        record_of(line[:at] + bytes([other]) + line[at + 1 :], 7)


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_arbitrary_bytes_are_no_record_and_do_no_harm(noise: bytes, crc: int) -> None:
    with pytest.raises(LineError):
        record_of(noise, crc)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(json_values)
def test_json_with_a_right_checksum_that_is_no_record_is_found(value: object) -> None:
    line, _ = line_of(json.dumps(value).encode(), 0)
    with pytest.raises(LineError, match="no record of this version"):
        record_of(line, 0)


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    line, _ = line_of(
        b'{"kind":"note","time":1,"topic":"x","data":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", 0
    )
    with pytest.raises(LineError):
        record_of(line, 0)
