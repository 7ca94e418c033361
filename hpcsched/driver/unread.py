"""Hyperparameters that are searched and that the script never looks at: most often a name that differs in the two files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcsched.config.spec import Constant, Dimension


class Unread:
    """Says each name once a driver life. A constant that nobody reads costs nothing and is passed over."""

    def __init__(self, space: Mapping[str, Dimension]) -> None:
        self._varied = {name for name, dimension in space.items() if not isinstance(dimension, Constant)}

    def warning(self, unread: Iterable[str]) -> str:
        """What to say when a script has made its first report without reading these; "" when nothing is new."""
        names = sorted(self._varied.intersection(unread))
        if not names:
            return ""
        self._varied.difference_update(names)
        it_is = "it is" if len(names) == 1 else "they are"
        return (
            f"the script has reported without reading {', '.join(names)} from trial.config: unless {it_is} read later, "
            f"the search varies what nothing depends on. Is the name the same in [search.space] and in the script?"
        )
