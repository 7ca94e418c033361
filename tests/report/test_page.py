from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import hpcsched
from hpcsched.errors import RunFolderError
from hpcsched.report import drawing, figures, search_figures
from hpcsched.report.page import page_of, write_report
from tests.support.runs import Script, a_machine, a_run, asha_settings, some_settings

NASTY = "<script>alert('x')</script> \"&\" $x_1$ {{ 7 * 6 }} \x1b[31m\u202e"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Checker(HTMLParser):
    """Well-formed nesting, ids, what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.labelled: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "svg" and "aria-labelledby" in found:
            self.labelled.append(str(found["aria-labelledby"]))
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = found.get(name)
            if value and not value.startswith(("#", "data:")):
                self.fetched.append(value)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.stack == []
    return checker


def test_the_page_is_one_file_that_fetches_nothing_and_names_its_pictures(tmp_path: Path) -> None:
    folder = a_run(tmp_path, script=Script(crash=(1,), hang=(2,), nan=(3,)))
    assert write_report(folder.root) == folder.report
    text = folder.report.read_text()
    checker = checked(text)
    assert checker.fetched == []
    assert checker.tags.count("script") == 1, "our own few lines, named by their hash in the policy"
    assert "@import" not in text
    assert len(checker.ids) == len(set(checker.ids))
    assert len(checker.labelled) == 6 + 2, (
        "over time 3, curves 2, rungs; hyperparameters 2; nothing was told of restarts"
    )
    assert set(checker.labelled) <= set(checker.ids)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_the_page_says_what_matters(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    log = hpcsched.load(folder.root)
    assert log.best is not None
    text = page_of(log, folder)
    assert f"accuracy = {log.best['metric']:.6g}" in text
    assert f"trained for {log.best['training_iteration']} of at most 16 iterations" in text
    assert str(folder.best / "checkpoint") in text
    assert "before the deadline" in text
    assert f"{log.config(log.best['trial_id'])['learning_rate']}" in text
    assert "the scaling was assumed, not measured" in text
    for use in ("training", "restart", "idle", "quarantined"):
        assert f"<td>{use}</td>" in text


def test_names_and_values_from_outside_are_text_and_nothing_else(tmp_path: Path) -> None:
    folder = a_run(tmp_path, name=NASTY)
    text = page_of(hpcsched.load(folder.root), folder)
    checked(text)
    assert text.count("<script") == 1
    assert "&lt;script&gt;alert(" in text
    assert "{{ 7 * 6 }}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_every_figure_is_drawn_in_any_format_and_for_a_run_without_any_result(tmp_path: Path) -> None:
    full = hpcsched.load(a_run(tmp_path / "full", settings=asha_settings()).root)
    empty = hpcsched.load(a_run(tmp_path / "empty", script=Script(kill_at=0.2)).root)
    assert len(empty.results) == 0
    for log in (full, empty):
        for draw in (figures.holders, figures.best_score, figures.learning_curves, figures.utilisation):
            figure = draw(log)
            svg = drawing.svg_of(figure, "x", "a title & more")
            assert svg.startswith("<svg")
            assert "a title &amp; more" in svg
            assert not re.search(r'(?<!x-)\bid="(?!x-)', svg)
            for kind in ("pdf", "png"):
                figure.savefig(tmp_path / f"figure.{kind}")
                assert (tmp_path / f"figure.{kind}").stat().st_size > 1000
    page_of(empty)


def test_what_trains_and_what_is_held_over_time_adds_up_to_the_runs_account(tmp_path: Path) -> None:
    log = hpcsched.load(a_run(tmp_path, deadline_s=40.0, script=Script(crash=(1,), hang=(2,))).root)
    times, training, held = figures.held_over_time(log)
    assert (training <= held + 1e-9).all()
    assert held.max() <= 4
    assert held[-1] == training[-1] == 0
    spans = np.diff(times)
    assert (training[:-1] * spans).sum() == pytest.approx(log.atom_seconds["training"])
    idle = (4 - held[:-1]) @ spans
    assert idle >= log.atom_seconds["idle"] - 1e-6, "atoms that are reserved for a resize are neither"


def test_text_in_the_pictures_has_the_colour_of_the_page(tmp_path: Path) -> None:
    log = hpcsched.load(a_run(tmp_path).root)
    svg = drawing.svg_of(figures.best_score(log), "best", "t")
    assert drawing.TEXT_COLOUR not in svg
    assert "currentColor" in svg
    assert "<text" in svg


def test_trial_colours_have_contrast_on_light_and_on_dark() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, two: str) -> float:
        a, b = sorted((luminance(one), luminance(two)))
        return (b + 0.05) / (a + 0.05)

    for colour in (*drawing.COLOURS, *search_figures.SIZE_COLOURS, drawing.DEADLINE_COLOUR):
        assert contrast(colour, "#15171c") >= 3, colour
        assert contrast(colour, "#ffffff") >= 2.5, colour


def test_many_shapes_become_a_picture_so_that_the_page_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = hpcsched.load(a_run(tmp_path).root)
    monkeypatch.setattr(figures, "MOST_VECTORS", 3)
    svg = drawing.svg_of(figures.holders(log), "holders", "t")
    assert "data:image/png;base64" in svg


def test_a_page_tells_what_other_policies_would_have_done_and_how_sure_that_is(tmp_path: Path) -> None:
    folder = a_run(tmp_path, deadline_s=60.0)
    log = hpcsched.load(folder.root)
    text = page_of(log, folder, num_draws=3)
    for words in (
        "How far to trust it: hypersched",
        "asha would have ended at",
        "deadline would have ended at",
        "3 draws",
        "10th to 90th",
    ):
        assert words in text, words
    assert "How far to trust it" not in page_of(log, folder, num_draws=0)
    assert "--draws 3" in page_of(log, folder, num_draws=0)


def test_the_page_of_a_large_machine_names_every_section(tmp_path: Path) -> None:
    folder = a_run(tmp_path, settings=some_settings(num_trials=30), machine=a_machine(4, 4), deadline_s=60.0)
    text = page_of(hpcsched.load(folder.root), folder)
    checked(text)
    for heading in (
        "Who held which GPU when", "Best score against time", "GPUs in use", "Learning curves", "Learning curves by atoms",
        "Rungs, and what was cut", "Which hyperparameters mattered", "Configurations and their scores", "Time to the first result",
        "Where the GPU-hours went", "Whose iterations they were", "What other policies would have done", "Decisions", "Trials",
    ):  # fmt: skip
        assert f"<h2>{heading}</h2>" in text, heading


def test_a_page_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    with pytest.raises(RunFolderError, match="--out"):
        write_report(folder.root, tmp_path / "missing" / "page.html")
