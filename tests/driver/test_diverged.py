from __future__ import annotations

from hpcsched.core.events import ResultReported
from hpcsched.driver.diverged import Diverged


def said(diverged: Diverged, *metrics: float | str | None, trial: int = 2, first: int = 1) -> list[str]:
    """What is said to each report of a row; a text is a problem, None a report without the metric."""
    out = []
    for iteration, metric in enumerate(metrics, first):
        problem = metric if isinstance(metric, str) else "missing" if metric is None else None
        value = None if problem else metric
        assert not isinstance(value, str)
        out.append(diverged.warning(ResultReported(0.0, trial, 1, iteration, value, 1.0, problem)))
    return out


def test_the_third_in_a_row_is_told_and_no_other() -> None:
    told = said(Diverged(metric="loss", policy="asha"), 0.5, "nan", "inf", "nan", "nan", "nan")
    assert told == ["", "", "", "loss is nan since iteration 2", "", ""]


def test_a_number_in_between_begins_anew_and_a_report_without_the_metric_is_none() -> None:
    assert not any(said(Diverged(metric="loss", policy="asha"), "nan", "nan", 0.1, "nan", "nan"))
    assert not any(said(Diverged(metric="loss", policy="asha"), None, None, None, None))
    diverged = Diverged(metric="loss", policy="asha")
    assert sum(map(bool, said(diverged, "nan", "nan", "nan", 0.1, "nan", "nan", "nan"))) == 2


def test_trials_are_counted_apart() -> None:
    diverged = Diverged(metric="loss", policy="asha")
    assert not any(said(diverged, "nan", "nan", trial=0) + said(diverged, "nan", "nan", trial=1))


def test_under_fifo_it_says_what_ends_the_trial() -> None:
    told = said(Diverged(metric="loss", policy="fifo"), "nan", "nan", "nan")[-1]
    assert "fifo has no early stop" in told
    assert "`hpcsched stop RUN 2`" in told
