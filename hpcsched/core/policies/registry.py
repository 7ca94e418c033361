"""Settings -> policy."""

from __future__ import annotations

from hpcsched.core.policies.asha import Asha
from hpcsched.core.policies.deadline import Deadline
from hpcsched.core.policies.fifo import Fifo
from hpcsched.core.policies.fixed_split import FixedSplit
from hpcsched.core.policies.hyperband import Hyperband
from hpcsched.core.policies.hypersched import HyperSched
from hpcsched.core.policies.rasda import Rasda
from hpcsched.core.policies.sha import Sha
from hpcsched.core.settings import (
    AshaSettings,
    DeadlineSettings,
    FifoSettings,
    FixedSplitSettings,
    HyperbandSettings,
    HyperSchedSettings,
    RasdaSettings,
    Settings,
    ShaSettings,
)
from hpcsched.core.view import Policy


def policy_of(settings: Settings) -> Policy:
    """A fresh policy as the settings describe it.

    Raises NotImplementedError for a policy that this version does not have.
    """
    options = settings.policy
    if isinstance(options, FifoSettings):
        return Fifo()
    if isinstance(options, AshaSettings):
        return Asha(settings, options)
    if isinstance(options, HyperSchedSettings):
        return HyperSched(settings, options)
    if isinstance(options, ShaSettings):
        return Sha(settings, options)
    if isinstance(options, HyperbandSettings):
        return Hyperband(settings, options)
    if isinstance(options, RasdaSettings):
        return Rasda(settings, options)
    if isinstance(options, FixedSplitSettings):
        return FixedSplit(settings, options)
    if isinstance(options, DeadlineSettings):
        return Deadline(settings, options)
    raise NotImplementedError(f"the policy of {type(options).__name__} is not in this version")
