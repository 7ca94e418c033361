"""`hpcsched add`: one more configuration for a live run, from another shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...", help='Hyperparameters, such as learning_rate=0.05 or kind="adam".'
        ),
    ],
) -> None:
    """Have a live run try one more configuration; prints the number of its trial.

    Names are those of [search.space]; values may lie outside its ranges, a constant may be left out. The driver says why it refuses:
    wrong or missing names, the run is ending (exit code 2, as when no driver serves this run folder).
    """
    from hpcsched.cli.run import setting_of
    from hpcsched.driver.orders import give_order, left_in_words, live_run
    from hpcsched.orders import ask_to_add

    ask = ask_to_add(
        dict(setting_of(text, what="NAME=VALUE", example="learning_rate=0.05") for text in values)
    )
    live = live_run(run)
    answer = give_order(live, ask)
    typer.echo(left_in_words(live, "try one more configuration") if answer is None else answer.text)
