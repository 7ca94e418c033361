"""Who decides and who proposes in a run: a search's own, or those of `hpcsched profile`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hpcsched.core.scheduler import Scheduler
from hpcsched.core.settings import Settings
from hpcsched.search.samplers import Sampler
from hpcsched.topology.machine import Machine


class Roles(msgspec.Struct, frozen=True):
    """How a run gets its scheduler and its sampler from those that the experiment file names."""

    scheduler: Callable[[Settings, Machine], Scheduler] = lambda settings, _: Scheduler(settings)
    sampler: Callable[[Sampler], Sampler] = lambda sampler: sampler


SEARCH = Roles()
