from __future__ import annotations

import json
from typing import Any

import pytest

from hpcsched.errors import InputError, MessageError
from hpcsched.orders import (
    MAX_BYTES,
    AddAsked,
    Ask,
    ExtendAsked,
    Order,
    StopAsked,
    ask_to_add,
    decode_order,
    encode_order,
    new_order_id,
)

ID = "0123456789abcdef" * 2


@pytest.mark.parametrize("ask", [StopAsked(), StopAsked(3), ExtendAsked(60.0), AddAsked({"x": [1, None]})])
def test_an_order_is_read_as_it_was_written(ask: Ask) -> None:
    order = Order(new_order_id(), 2, ask)
    assert decode_order(encode_order(order)) == order


@pytest.mark.parametrize(
    "changes",
    [
        {"order_id": "../../x"},
        {"order_id": ID[:-1]},
        {"order_id": ID.upper()},
        {"life": "one"},
        {"sudo": True},
        {"ask": {"do": "extend", "by_s": 0}},
        {"ask": {"do": "extend", "by_s": 1e300}},
        {"ask": {"do": "stop", "trial_id": -1}},
        {"ask": {"do": "stop", "everything": True}},
        {"ask": {"do": "rm"}},
        {"ask": {"do": "add", "config": {"x": "y" * MAX_BYTES}}},
    ],
)
def test_what_is_no_order_is_refused(changes: dict[str, Any]) -> None:
    good: dict[str, Any] = {"order_id": ID, "life": 1, "ask": {"do": "stop"}}
    decode_order(json.dumps(good).encode())
    with pytest.raises(MessageError):
        decode_order(json.dumps(good | changes).encode())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}])
def test_a_configuration_that_json_cannot_hold_is_a_mistake_of_the_user(value: object) -> None:
    with pytest.raises(InputError, match="not a configuration"):
        ask_to_add({"x": value})
