"""The objects a trial tracks, and their state in a form that any world size can load.

Models and optimizers go through `torch.distributed.checkpoint.state_dict`, which names every parameter by its full
name whatever wraps it (DDP, FSDP, compile), so that a checkpoint of 2 ranks restores on 1 or 3. Any other object with
`state_dict` and `load_state_dict` is taken as it is, from rank 0: its state must be the same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from hpcsched.errors import CheckpointError, TrialError
from hpcsched.runtime.trees import empty_tensors, join, split


class Tracked:
    """Named models, optimizers and others."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._objects)

    def add(self, objects: Mapping[str, Any]) -> None:
        """Raises TrialError for a name that is taken and for an object that has no state."""
        for name, value in objects.items():
            if name in self._objects:
                raise TrialError(f"trial.track(): {name!r} is tracked already")
            if "/" in name or not name:
                raise TrialError(f"trial.track(): {name!r} is no name: give keyword arguments")
            if not (
                callable(getattr(value, "state_dict", None))
                and callable(getattr(value, "load_state_dict", None))
            ):
                raise TrialError(
                    f"trial.track(): {name} is a {type(value).__name__} without state_dict() and load_state_dict()"
                )
        self._objects.update(objects)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors by key, and a skeleton by name. Collective: every rank calls it."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

        tensors: dict[str, torch.Tensor] = {}
        skeletons: dict[str, Any] = {}
        for name, value in self._objects.items():
            if isinstance(value, torch.nn.Module):
                tree: Any = get_model_state_dict(value)
            elif isinstance(value, torch.optim.Optimizer):
                tree = get_optimizer_state_dict(self._model_of(name, value), value)
            else:
                tree = value.state_dict()
            skeletons[name] = split(tree, name, tensors)
        return tensors, skeletons

    def of_rank_0(self, tensors: Mapping[str, torch.Tensor]) -> set[str]:
        """Keys whose tensors may differ between ranks, so that only rank 0's are saved: buffers of a model (a batch norm's
        statistics are each rank's own until DDP's next broadcast of rank 0's), and all that is no model or optimizer.

        Parameters and optimizer state are equal on all ranks, or shards: the ranks share the work of writing them.
        """
        found: set[str] = set()
        for name, value in self._objects.items():
            keys = {key for key in tensors if key == name or key.startswith(f"{name}/")}
            if isinstance(value, torch.nn.Module):
                buffers = {buffer.data_ptr() for buffer in value.buffers()}
                keys = {key for key in keys if tensors[key].data_ptr() in buffers}
            elif isinstance(value, torch.optim.Optimizer):
                continue
            found.update(key for key in keys if not isinstance(tensors[key], DTensor))
        return found

    def destinations(self, names: Mapping[str, Any], skeletons: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Tensors to load `names` into: the live ones of models and optimizers, fresh ones for the others."""
        found: dict[str, torch.Tensor] = {}
        live, _ = self.state()
        for name, value in names.items():
            if name not in skeletons:
                raise CheckpointError(
                    f"the checkpoint holds nothing named {name!r} (it holds {', '.join(sorted(skeletons))}): "
                    "the script tracks something else than when it was saved"
                )
            saved = empty_tensors(skeletons[name])
            if not isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
                found.update(saved)
                continue
            mine = {key: tensor for key, tensor in live.items() if key.startswith(f"{name}/")}
            missing = sorted(mine.keys() - saved.keys()) if isinstance(value, torch.nn.Module) else []
            unexpected = sorted(saved.keys() - mine.keys())
            wrong = sorted(key for key in mine.keys() & saved.keys() if mine[key].shape != saved[key].shape)
            if missing or unexpected or wrong:
                raise CheckpointError(
                    f"{name} is another one than in the checkpoint: missing there {missing[:5]}, only there {unexpected[:5]}, "
                    f"of another shape {wrong[:5]}"
                )
            found.update({key: tensor for key, tensor in mine.items() if key in saved})
        return found

    def load(
        self, names: Mapping[str, Any], skeletons: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Give every object of `names` its state. Collective."""
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        for name, value in names.items():
            tree = join(skeletons[name], tensors.__getitem__)
            if isinstance(value, torch.nn.Module):
                set_model_state_dict(value, tree)
            elif isinstance(value, torch.optim.Optimizer):
                set_optimizer_state_dict(self._model_of(name, value), value, tree)
            else:
                value.load_state_dict(tree)

    def communication_share(self) -> float | None:
        """Of the last step that DDP has timed (the first ten and then every hundredth): the share of forward and backward in
        which nothing was computed because gradients were under way. None without DDP, or before."""
        for value in self._objects.values():
            if isinstance(value, torch.nn.parallel.DistributedDataParallel):
                times: dict[str, Any] = value._get_ddp_logging_data()  # type: ignore[no-untyped-call]
                hidden_s = times.get("backward_compute_comm_overlap_time", 0)
                bare_s = max(0, times.get("backward_comm_time", 0) - hidden_s)
                computed_s = times.get("forward_compute_time", 0) + times.get("backward_compute_time", 0)
                return bare_s / (bare_s + computed_s) if computed_s > 0 else None
        return None

    def sizes(self) -> Iterator[tuple[torch.Tensor, int, bool]]:
        """(tensor, how many of its size a checkpoint holds at most, it is a model's), as far as is known before the first step: an
        optimizer keeps up to two numbers a parameter (Adam's). Not collective."""
        for value in self._objects.values():
            if isinstance(value, torch.nn.Module):
                yield from ((tensor, 1, True) for tensor in (*value.parameters(), *value.buffers()))
            elif isinstance(value, torch.optim.Optimizer):
                for group in value.param_groups:
                    yield from ((parameter, 2, False) for parameter in group["params"])

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of what is a model."""
        return tuple(name for name, value in self._objects.items() if isinstance(value, torch.nn.Module))

    def gathered_models(self, *, copy: bool) -> dict[str, Any]:
        """By name, the plain state dict of each model that is sharded: whole and on the CPU of rank 0, empty on the others.
        Collective. `copy`: nothing in it may be a tensor that training goes on to change."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        found: dict[str, Any] = {}
        for name, value in self._objects.items():
            if not isinstance(value, torch.nn.Module):
                continue
            if not any(isinstance(parameter, DTensor) for parameter in value.parameters()):
                continue
            whole = get_model_state_dict(value, options=options)
            # What was on the CPU already may have been handed out as it is (a mesh of one rank gathers nothing).
            on_cpu = any(parameter.device.type == "cpu" for parameter in value.parameters())
            found[name] = (
                {key: each.clone() if isinstance(each, torch.Tensor) else each for key, each in whole.items()}
                if copy and on_cpu
                else whole
            )
        return found

    def _model_of(self, name: str, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        models = {key: value for key, value in self._objects.items() if isinstance(value, torch.nn.Module)}
        wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model in models.values():
            if wanted <= {id(parameter) for parameter in model.parameters()}:
                return model
        together = torch.nn.ModuleDict(models)
        if wanted <= {id(parameter) for parameter in together.parameters()}:
            return together
        raise TrialError(
            f"trial.track(): the parameters of {name} belong to no tracked model; track the model too"
        )
