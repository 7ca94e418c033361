"""The documentation as a site, and the pages that are made from the code."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpcsched.docsite.reference import PAGES
from hpcsched.docsite.site import ORDER, body_of, render_site
from hpcsched.errors import InputError
from hpcsched.share import share


@pytest.mark.parametrize("name", PAGES)
def test_a_made_page_is_what_the_code_says(name: str) -> None:
    kept = (share("docs") / name).read_text(encoding="utf-8")
    assert kept == PAGES[name](), "make it anew: python -m hpcsched.docsite.reference"


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.ids: set[str] = set()
        self.sources: list[str] = []
        self.without_alt = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if facts.get("id"):
            self.ids.add(str(facts["id"]))
        if tag == "a":
            self.hrefs.append(str(facts["href"]))
        if tag in ("img", "script", "iframe"):
            self.sources.append(str(facts.get("src", tag)))
            self.without_alt += tag == "img" and not facts.get("alt")


def read(file: Path) -> Links:
    links = Links()
    links.feed(file.read_text(encoding="utf-8"))
    return links


def test_every_link_of_the_site_leads_somewhere_and_nothing_is_fetched(tmp_path: Path) -> None:
    pages = {file.name: read(file) for file in render_site(tmp_path) if file.suffix == ".html"}
    assert set(pages) >= {f"{name}.html" for name in ORDER}
    for name, page in pages.items():
        assert not page.without_alt, f"{name}: a picture without an alternative text"
        for source in page.sources:
            assert (tmp_path / source).is_file(), f"{name}: {source}"
        for href in page.hrefs:
            file, _, anchor = href.partition("#")
            assert not href.startswith("http"), f"{name}: {href} needs a network"
            target = pages.get(file or name)
            assert target is not None, f"{name}: {href} leads nowhere"
            assert not anchor or anchor in target.ids, f"{name}: {href} has no such part"


def test_every_page_is_reached_from_the_index() -> None:
    index = (share("docs") / "index.md").read_text()
    reached = set(re.findall(r"\((\w+)\.md", index))
    assert reached | {"index"} == {file.stem for file in share("docs").glob("*.md")}


def test_markdown_cannot_bring_in_html_of_its_own() -> None:
    assert "<script" not in body_of("# A\n\n<script>alert(1)</script>", set())


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--out"):
        render_site(tmp_path / "file")
