"""Nodes that keep killing trials. Pure: no clock, no sockets.

Theory. A node can be up, take steps, and still be broken: a GPU that fails at the first kernel, a full local disk, memory
that is gone. Its trials crash, are tried again, and the node, being free again at once, draws the next ones. So whoever ends
badly is counted against its nodes; a report clears them. A node is set aside when `NUM_TRIALS` different trials in a row
have ended badly on it before a report, while a trial on another node has reported since the first of them, or while trials live on
other nodes and none has ended so there (a script's first report can take minutes, and such a node kills in seconds). When trials die on
several nodes and nobody reports anywhere the script is to blame, and `fail_fast` speaks.

A trial that has ended badly on two nodes that have nothing in common, or on one where somebody has reported since, is suspect itself:
it accuses no node any more. Else the second tries of a few bad configurations, which begin where the first ones died and so die
before a report, would look like a broken node.

An end that the node is to answer for is no crash of the trial: the one that has it set aside, and already the second in a row while
trials live on other nodes and none has died there. Else the first trials of a broken node would be the end of the experiment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from hpcsched.core.enums import Outcome

NUM_TRIALS = 3
NUM_LOSSES = 3
"""A node that was lost so often is not used again when it comes back."""
BAD = frozenset({Outcome.CRASHED, Outcome.OUT_OF_MEMORY, Outcome.LAUNCH_FAILED})
"""NODE_FAILED is one loss of the node, however many trials it hits, or of one GPU, which is set aside."""


class _Record(msgspec.Struct):
    trials: set[int] = msgspec.field(default_factory=set)
    """That ended badly here, in a row."""
    others_work: bool = False
    """Somebody has reported elsewhere since the first of them."""


class Verdict(msgspec.Struct, frozen=True):
    """On one end of an incarnation."""

    set_aside: tuple[str, ...] = ()
    """Nodes that are not to be used any more, from now on."""
    to_blame: str = ""
    """The node, not the trial; "" when it is the trial."""


class Suspects:
    """One driver life's nodes."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._num_losses: dict[str, int] = {}
        self._died: dict[int, frozenset[str]] = {}
        """Trials that have ended badly, reports or not, and where; nobody has reported there since."""
        self._own_fault: set[int] = set()
        """They accuse no node any more."""
        self.set_aside: set[str] = set()

    def reported(self, nodes: Collection[str]) -> None:
        """A trial on these nodes has reported."""
        if not self._died:
            return
        for trial_id in [trial_id for trial_id, where in self._died.items() if not where.isdisjoint(nodes)]:
            del self._died[trial_id]
            self._own_fault.add(trial_id)
        for node in nodes:
            self._records.pop(node, None)
        for record in self._records.values():
            record.others_work = True

    def ended(
        self, trial_id: int, nodes: Iterable[str], outcome: Outcome, *, has_reported: bool, others_live: bool
    ) -> Verdict:
        """An incarnation on these nodes is over. `others_live`: incarnations run on other nodes."""
        if outcome not in BAD:
            return Verdict()
        nodes = tuple(nodes)
        if not self._died.get(trial_id, frozenset(nodes)).intersection(nodes):
            self._own_fault.add(trial_id)
            for node, record in list(self._records.items()):
                record.trials.discard(trial_id)
                if not record.trials:
                    del self._records[node]
        self._died[trial_id] = frozenset(nodes)
        if has_reported or trial_id in self._own_fault:
            return Verdict()
        aside, to_blame = [], ""
        for node in nodes:
            record = self._records.setdefault(node, _Record())
            record.trials.add(trial_id)
        for node in nodes:
            record = self._records[node]
            alone = others_live and self._records.keys() == {node}
            if (
                len(record.trials) >= NUM_TRIALS
                and (record.others_work or alone)
                and node not in self.set_aside
            ):
                self.set_aside.add(node)
                aside.append(node)
            if node in self.set_aside or (alone and len(record.trials) > 1):
                to_blame = to_blame or node
        return Verdict(tuple(aside), to_blame)

    def lost(self, node: str) -> bool:
        """It is down; True when it is to be set aside now."""
        losses = self._num_losses[node] = self._num_losses.get(node, 0) + 1
        if losses < NUM_LOSSES or node in self.set_aside:
            return False
        self.set_aside.add(node)
        return True
