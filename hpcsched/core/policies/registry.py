"""Settings -> policy."""

from __future__ import annotations

from hpcsched.core.policies.asha import Asha
from hpcsched.core.policies.fifo import Fifo
from hpcsched.core.policies.hypersched import HyperSched
from hpcsched.core.settings import AshaSettings, FifoSettings, HyperSchedSettings, Settings
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
    raise NotImplementedError(f"the policy of {type(options).__name__} is not in this version")
