"""The trial's hyperparameters, and which of them the script has looked at."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

from hpcsched.errors import TrialError


class Config(dict[str, Any]):
    """The trial's hyperparameters by name; a name that is missing is an error that says which there are.

    It notes what is read: a hyperparameter that no line reads is searched in vain. Going through all of them reads all.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._unread = set(values)

    @property
    def unread(self) -> tuple[str, ...]:
        """Names that nobody has asked for yet, sorted."""
        return tuple(sorted(self._unread))

    def __missing__(self, name: str) -> Any:
        raise TrialError(
            f"trial.config has no {name!r} (it has {', '.join(sorted(self.keys())) or 'nothing'}): add it to [search.space] of the "
            f"experiment file, or give a default: hpcsched.trial({name}=...)"
        )

    def __getitem__(self, name: str) -> Any:
        self._unread.discard(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None, /) -> Any:
        self._unread.discard(name)
        return super().get(name, default)

    def pop(self, name: str, /, *default: Any) -> Any:
        self._unread.discard(name)
        return super().pop(name, *default)

    def __contains__(self, name: object) -> bool:
        self._unread.discard(str(name))
        return super().__contains__(name)

    # `**config`, `dict(config)`, `{} | config`, json.dumps, pickle and copies come through one of these

    def __iter__(self) -> Iterator[str]:
        self._unread.clear()
        return super().__iter__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]  # dict_keys cannot be named
        self._unread.clear()
        return super().keys()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # nor dict_values
        self._unread.clear()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # nor dict_items
        self._unread.clear()
        return super().items()

    def copy(self) -> dict[str, Any]:
        self._unread.clear()
        return super().copy()

    def __or__(self, other: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]  # typeshed's has overloads
        return dict(self) | other

    def __ror__(self, other: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]  # typeshed's has overloads
        return other | dict(self)
