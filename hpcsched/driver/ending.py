"""The last words of a run: the best trial, where its checkpoint is, who held which atom when."""

from __future__ import annotations

import json
import shlex

from hpcsched.core.enums import ExperimentState
from hpcsched.driver.request import Result


def best_in_words(result: Result) -> list[str]:
    best = result.best
    if best is None:
        return ["no best model: no trial has a complete checkpoint with a score"]
    where = result.folder.best
    load = f"import torch; model = torch.load({str(where / 'model.pt')!r}, weights_only=True)"
    lines = [
        f"best trial    {best['trial_id']}",
        f"{best['metric_name']:<13} {best['metric']:.6g}",
        f"trained to    iteration {best['training_iteration']}",
        f"saved at      {best['saved_s']:.1f} s",
        f"config        {json.dumps(best['config'], sort_keys=True)}",
        f"checkpoint    {where}",
    ]
    if (where / "model.pt").exists():
        lines.append(f"load it by    python -c {_quoted(load)}")
    return lines


def _quoted(code: str) -> str:
    """For a shell; in double quotes where they do, for code has single ones."""
    return shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'


def ending(result: Result, picture: str = "") -> str:
    """All of it, as text. `picture`: who held which atom when."""
    root = result.folder.root
    lines = [""]
    if picture:
        lines += [picture, ""]
    why = f": {result.why}" if result.why else ""
    lines.append(f"{result.state.value}{why}")
    lines += best_in_words(result)
    if result.scaling:
        lines.append(result.scaling)
    lines.append(f"run folder    {root}")
    quoted = shlex.quote(str(root))
    if result.state is ExperimentState.SUSPENDED:
        lines.append(f"go on with    hpcsched run --resume {quoted}")
    lines.append(f"look at it    hpcsched report {quoted}; hpcsched explain {quoted} TRIAL")
    return "\n".join(lines) + "\n"
