from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsched.eventlog.lines import LineError, durable_of, encode_record, line_of, record_of
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


def test_a_line_can_say_what_was_durable_when_it_was_written() -> None:
    line, crc = line_of(encode_record(a_step(1)), 7, 81920)
    whole = json.loads(line)
    assert (whole["crc32"], whole["durable"]) == (f"{crc:08x}", 81920)
    assert durable_of(line) == 81920
    assert record_of(line, 7) == (a_step(1), crc)
    assert durable_of(line_of(encode_record(a_step(1)), 7)[0]) is None
    with pytest.raises(LineError):
        record_of(line.replace(b"81920", b"81921"), 7)


@given(st.data())
def test_any_changed_byte_of_a_line_is_found(data: st.DataObject) -> None:
    line, _ = line_of(encode_record(a_step(1)), 7, data.draw(st.sampled_from([None, 0, 81920])))
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
