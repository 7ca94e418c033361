"""What a user may order of a live driver from another shell, and the driver's answer: JSON bytes <-> typed values.

The same bytes go over the driver's endpoint and, where that cannot be reached, as a file into `control/`. An order has an id,
drawn by who gives it: the driver carries out each id once, whichever way and however often it comes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from hpcsched.errors import InputError, MessageError

MAX_BYTES = 1 << 16
"""Longest order taken, 64 KiB."""
LONGEST_S = 10 * 365 * 86400.0
"""Of an extension."""

OrderId: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
"""128 random bits in hexadecimal digits: also a file's name."""


class StopAsked(msgspec.Struct, frozen=True, tag="stop", tag_field="do", forbid_unknown_fields=True):
    """`hpcsched stop RUN [TRIAL]`: the whole experiment (None) or one trial."""

    trial_id: Annotated[int, msgspec.Meta(ge=0, le=10**9)] | None = None


class ExtendAsked(msgspec.Struct, frozen=True, tag="extend", tag_field="do", forbid_unknown_fields=True):
    """`hpcsched extend RUN 30m`."""

    by_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]


class AddAsked(msgspec.Struct, frozen=True, tag="add", tag_field="do", forbid_unknown_fields=True):
    """`hpcsched add RUN NAME=VALUE ...`: one more configuration; the constants of the space may be left out."""

    config: dict[str, Any]


Ask: TypeAlias = StopAsked | ExtendAsked | AddAsked


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    order_id: OrderId
    life: int
    """The driver life whose lease was read. Over the endpoint no other one takes it; a file outlives a driver."""
    ask: Ask


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Given once the journal holds what was done."""

    order_id: OrderId
    done: bool
    """False: refused, nothing was done."""
    text: str
    """What was done, or why not and what to do now. May hold foreign text: clean it before it is shown."""
    trial_id: int | None = None
    """Of an added trial."""


def ask_to_add(config: Mapping[str, Any]) -> AddAsked:
    """Raises InputError for values that JSON cannot hold (NaN, infinities, objects)."""
    try:
        return AddAsked(json.loads(json.dumps(dict(config), allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{dict(config)!r}: not a configuration of JSON values: {error}") from error


def new_order_id() -> str:
    return secrets.token_hex(16)


_order: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_answer: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode_order(order: Order) -> bytes:
    """Raises MessageError for what no driver would take."""
    try:
        data = msgspec.json.encode(order)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"an order that cannot be written: {error}") from error
    decode_order(data)
    return data


def decode_order(data: bytes) -> Order:
    """Raises MessageError, also for values that the journal could not hold as they are."""
    if len(data) > MAX_BYTES:
        raise MessageError(f"an order of {len(data)} bytes: at most {MAX_BYTES} are taken")
    try:
        order = _order.decode(data)
        if _order.decode(msgspec.json.encode(order)) != order:
            raise MessageError("not an order: it would not be read back as it is written")
    except (msgspec.DecodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"not an order: {error}") from error
    return order


def encode_answer(answer: Answer) -> bytes:
    return msgspec.json.encode(answer)


def decode_answer(data: bytes) -> Answer:
    """Raises MessageError."""
    try:
        return _answer.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MessageError(f"not an answer: {error}") from error
