"""The options of each policy, as keys of the `[scheduler]` table.

Names, types and defaults come from `hpcsched.core.settings`; kinds and words for people from here.
"""

from __future__ import annotations

import typing

import msgspec

from hpcsched.config.kinds import Flag, Kind, Number, OneOf, Typed, Whole
from hpcsched.core import settings

POLICIES: dict[str, type[msgspec.Struct]] = {
    str(policy.__struct_config__.tag): policy for policy in typing.get_args(settings.PolicySettings)
}
"""Settings class by the policy's name in the file."""

NEEDS_DEADLINE = frozenset({"hypersched", "deadline", "fixed_split"})

POLICY_DOCS = {
    "fifo": "no early stop: one atom a trial, the next trial when one ends",
    "asha": "asynchronous successive halving with pausing and promotion",
    "sha": "synchronous successive halving of num_trials configurations",
    "hyperband": "Hyperband: successive halving from several grace periods",
    "rasda": "ASHA whose survivors get more atoms at each rung",
    "fixed_split": "explore for a fixed share of the time, then all atoms to the best",
    "hypersched": "HyperSched: explore, then give the atoms to those who can still win by the deadline",
    "deadline": "our own policy: at every event whatever raises the expected score at the deadline most",
}

_FRACTION = Number(0, 1, low_excluded=True, high_excluded=True)

_DOCS: dict[tuple[str, str], tuple[Kind, str]] = {
    ("asha", "stopping"): (
        Flag(),
        "Decide on arrival and for good (Ray's variant) instead of pausing and promoting.",
    ),
    ("sha", "num_trials"): (
        Whole(1),
        "Configurations of the first rung; at least reduction_factor to the power of the number of rungs less one. "
        "Default: [search] num_trials, else that least number.",
    ),
    ("rasda", "initial_atoms"): (Whole(1), "Atoms of a new trial."),
    ("rasda", "scaling_factor"): (Whole(2), "Times more atoms at each rung; default: reduction_factor."),
    ("fixed_split", "explore_fraction"): (_FRACTION, "Share of the time until the deadline that explores."),
    ("fixed_split", "num_trials"): (Whole(1), "Configurations of the exploration; default: as many as come."),
    ("hypersched", "speculation"): (
        Flag(),
        "Trials run on past a rung until better ones arrive; off: ASHA's pausing.",
    ),
    ("hypersched", "allocation"): (
        OneOf(("uniform", "top", "softmax", "random", "none")),
        "How atoms that exploration has left are shared out: evenly, to the best, by score, at random, not at all.",
    ),
    ("hypersched", "entrance"): (
        OneOf(("closing", "reversible", "none")),
        "New trials are let in until the rule closes for good, whenever the rule holds, or until the deadline.",
    ),
    ("hypersched", "explore_fraction"): (
        _FRACTION,
        "A fixed share of the time in which new trials may enter, in place of the entrance rule; default: the rule.",
    ),
    ("hypersched", "ignore_overhead"): (
        Flag(),
        "Do not ask whether a resize pays for its restart (an ablation).",
    ),
    ("hypersched", "assume_linear"): (Flag(), "Reckon with linear scaling whatever is known (an ablation)."),
    ("hypersched", "cool_down"): (Whole(0), "Results between two resizes of one trial."),
    ("hypersched", "margin"): (
        Number(0, low_excluded=True),
        "A resize must be worth this many times its cost.",
    ),
    ("hypersched", "keep_paused"): (Flag(), "Paused trials stay for later when the entrance closes."),
    ("hypersched", "last_resort"): (
        OneOf(("first", "best")),
        "Which paused trial goes on when nobody can be promoted and nobody new comes: the first created (2020), or the best.",
    ),
    ("hypersched", "protect_leader"): (Flag(), "The leader is not paused for what it scored at an old rung."),
    ("deadline", "growth"): (
        Number(0, low_excluded=True),
        "Growth from k to 2 k iterations, in spreads among trials, that counts until it has been measured.",
    ),
    ("deadline", "prior_weight"): (
        Number(0, low_excluded=True),
        "Trials that growth counts as, while it is measured to tell whether choice or training matters more.",
    ),
    ("deadline", "scouts"): (
        Flag(),
        "The first trials start on the root of half of all atoms each, until an iteration has shown how long it takes.",
    ),
    ("deadline", "untypical"): (Whole(0), "Iterations at the start of a training whose time is not counted."),
    ("deadline", "leap"): (
        Whole(1),
        "Where choice matters more, a trial grows by this factor at least, or to the largest useful size.",
    ),
    ("deadline", "reach"): (
        Number(0),
        "There, a trial grows only if it will have trained at least so many times as far as the best one had.",
    ),
    ("deadline", "trained"): (
        Number(0, 1, low_excluded=True),
        "Where training matters more, the field is narrowed to so few that each can do this share of R.",
    ),
    ("deadline", "enough"): (
        Whole(1),
        "There, so many iterations count as a whole training, whatever R is.",
    ),
    ("deadline", "explore"): (
        _FRACTION,
        "There, the share of the deadline after which the field is narrowed.",
    ),
    ("deadline", "wide"): (Whole(1), "There, how many times as many trials compete before that."),
    ("deadline", "patience"): (
        Number(0),
        "There, a trial makes room for a newcomer when it has not improved for this share of the iterations before; 0: never.",
    ),
    ("deadline", "turnover"): (Flag(), "Most trials go again soon where choice outweighs training."),
    ("deadline", "narrow"): (Flag(), "The field is narrowed, and contenders grow, where training does."),
    ("hypersched", "shrink_pays"): (Flag(), "A trial is shrunk only when that pays for its restart."),
}


class Option(msgspec.Struct, frozen=True):
    """One option of one policy."""

    policy: str
    name: str
    kind: Kind
    default: typing.Any
    doc: str


def _options() -> dict[str, dict[str, Option]]:
    table: dict[str, dict[str, Option]] = {}
    for policy, struct in POLICIES.items():
        types = typing.get_type_hints(struct)
        table[policy] = {}
        for field in msgspec.structs.fields(struct):
            kind, doc = _DOCS.get((policy, field.name), (Typed(types[field.name]), ""))
            table[policy][field.name] = Option(policy, field.name, kind, field.default, doc)
    return table


OPTIONS = _options()
"""By policy and name, in the order of the settings class."""
