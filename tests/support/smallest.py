"""The smallest experiment file: one number is searched for, nothing is trained."""

from __future__ import annotations


def smallest(*, num_trials: int = 1, max_iterations: int = 9, experiment: str = "") -> str:
    """`experiment`: more lines of its first table."""
    return f"""\
[experiment]
metric = "accuracy"
{experiment}
[trial]
command = ["true"]
max_iterations = {max_iterations}
[scheduler]
policy = "fifo"
[search]
num_trials = {num_trials}
[search.space]
x = {{ uniform = [0.0, 1.0] }}
"""
