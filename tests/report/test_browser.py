"""The page about a run and the documentation, opened in headless Chromium."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from hpcsched.docsite.site import render_site
from hpcsched.report.page import write_report
from tests.support.runs import a_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
    pytest.mark.timeout(300),
]


def opened(page: Path, profile: Path, *args: str, width: int = 400, height: int = 2000) -> tuple[str, str]:
    """What it prints, and its log."""
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
         "--disable-background-networking", "--virtual-time-budget=2000", f"--user-data-dir={profile}", f"--window-size={width},{height}",
         *args, page.as_uri()],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done.stdout, done.stderr


def complaints(log: str) -> list[str]:
    return [line for line in log.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    return write_report(a_run(tmp_path_factory.mktemp("run"), deadline_s=40.0).root)


@pytest.mark.parametrize("width", [400, 1600])
def test_the_report_opens_without_complaint_and_fits(report: Path, tmp_path: Path, width: int) -> None:
    probe = tmp_path / "probe.html"
    # The page in a frame of the given width; how wide its body would like to be is told in the title.
    text = report.read_text(encoding="utf-8")
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text.split("<pre>")[0]).replace("http-equiv", "")
    probe.write_text(text, encoding="utf-8")
    dom, log = opened(probe, tmp_path / "profile", "--dump-dom", width=width)
    assert not complaints(log), complaints(log)
    assert re.search(r"<title>trial \d+, completed, 0\.\d+", dom), (
        "the script names the trials of the figures"
    )


def test_a_changed_script_is_refused_by_the_page_itself(report: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.html"
    changed.write_text(
        report.read_text(encoding="utf-8").replace('"use strict";', '"use strict"; /* evil */'),
        encoding="utf-8",
    )
    dom, log = opened(changed, tmp_path / "profile", "--dump-dom")
    assert complaints(log)
    assert not re.search(r"<title>trial \d+, completed", dom)


@pytest.mark.parametrize("width", [400, 1600])
def test_pages_are_pictures_of_the_asked_width_and_not_blank(
    report: Path, tmp_path: Path, width: int
) -> None:
    index = render_site(tmp_path / "site")[0]
    for page in (report, tmp_path / "site" / "tutorial.html", index):
        picture = tmp_path / f"{page.stem}.png"
        _, log = opened(page, tmp_path / "profile", f"--screenshot={picture}", width=width, height=1200)
        assert not complaints(log), complaints(log)
        data = picture.read_bytes()
        assert struct.unpack(">II", data[16:24]) == (width, 1200)
        assert len(data) > 20_000, "a blank page is small"
