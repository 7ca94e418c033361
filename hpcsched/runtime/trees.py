"""State as two things: tensors by name, and a JSON skeleton of all the rest.

A checkpoint must never need a general unpickler, so whatever `state_dict()` returns is taken apart: tensors go to
torch.distributed.checkpoint under a path-like key, everything else becomes JSON in the manifest. What JSON cannot
say plainly is tagged: ``{"$": "tensor", "key": ...}``, ``tuple``, ``float`` (nan, inf), ``bytes``, ``dict`` (keys that
are not strings), ``counter``. A value of any other type is refused by name: it would be lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hpcsched.errors import CheckpointError, TrialError

_TAG = "$"


def split(tree: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The skeleton of `tree`; its tensors are added to `tensors` under "path/...". Raises TrialError."""
    if isinstance(tree, torch.Tensor):
        tensors[path] = tree
        return {
            _TAG: "tensor",
            "key": path,
            "shape": list(tree.shape),
            "dtype": str(tree.dtype).removeprefix("torch."),
        }
    if tree is None or isinstance(tree, (bool, str)):
        return tree
    if hasattr(tree, "dtype") and hasattr(tree, "item") and getattr(tree, "shape", None) == ():
        tree = tree.item()  # a numpy scalar
    if isinstance(tree, int):
        return int(tree)
    if isinstance(tree, float):
        return float(tree) if math.isfinite(tree) else {_TAG: "float", "value": str(float(tree))}
    if isinstance(tree, (bytes, bytearray)):
        return {_TAG: "bytes", "value": bytes(tree).hex()}
    if isinstance(tree, (list, tuple)):
        items = [split(item, f"{path}/{place}", tensors) for place, item in enumerate(tree)]
        return items if isinstance(tree, list) else {_TAG: "tuple", "items": items}
    if isinstance(tree, Mapping):
        if isinstance(tree, Counter):
            return {_TAG: "counter", "items": [[split(k, path, tensors), n] for k, n in tree.items()]}
        if all(isinstance(key, str) for key in tree) and _TAG not in tree:
            return {key: split(value, f"{path}/{key}", tensors) for key, value in tree.items()}
        pairs = [
            [split(key, path, tensors), split(value, f"{path}/{key}", tensors)] for key, value in tree.items()
        ]
        return {_TAG: "dict", "items": pairs}
    raise TrialError(
        f"{path}: a {type(tree).__name__} cannot be put into a checkpoint (tensors, numbers, strings, bytes, lists, tuples "
        "and dicts can). Give trial.track() an object whose state_dict() holds only these"
    )


def join(skeleton: Any, tensor_of: Callable[[str], torch.Tensor]) -> Any:
    """The tree again, its tensors from `tensor_of(key)`. Raises CheckpointError for a tag that is not ours."""
    if isinstance(skeleton, list):
        return [join(item, tensor_of) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    match skeleton.get(_TAG):
        case None:
            return {key: join(value, tensor_of) for key, value in skeleton.items()}
        case "tensor":
            return tensor_of(skeleton["key"])
        case "float":
            return float(skeleton["value"])
        case "bytes":
            return bytes.fromhex(skeleton["value"])
        case "tuple":
            return tuple(join(item, tensor_of) for item in skeleton["items"])
        case "dict":
            return {join(key, tensor_of): join(value, tensor_of) for key, value in skeleton["items"]}
        case "counter":
            return Counter({join(key, tensor_of): count for key, count in skeleton["items"]})
        case other:
            raise CheckpointError(
                f"the manifest holds a value of the unknown kind {other!r}: written by a newer version?"
            )


def empty_tensors(skeleton: Any) -> dict[str, torch.Tensor]:
    """CPU tensors to load into, of the shapes and types that the skeleton names."""
    found: dict[str, torch.Tensor] = {}

    def look(node: Any) -> None:
        if isinstance(node, list):
            for item in node:
                look(item)
        elif isinstance(node, dict):
            if node.get(_TAG) == "tensor":
                dtype = getattr(torch, node["dtype"], None)
                if not isinstance(dtype, torch.dtype):
                    raise CheckpointError(f"{node['key']}: no such tensor type: {node['dtype']!r}")
                found[node["key"]] = torch.empty(node["shape"], dtype=dtype)
            else:
                for value in node.values():
                    look(value)

    look(skeleton)
    return found
