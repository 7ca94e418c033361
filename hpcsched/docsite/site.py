"""The pages of `docs/` as a site of plain HTML files: no script, no request, light and dark."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from hpcsched.errors import InputError
from hpcsched.share import share

ORDER = (
    "index", "tutorial", "howto_cluster", "howto_watch", "howto_python", "howto_resume", "howto_analyse", "training", "algorithms", "policy",
    "machine", "reference_experiment", "reference_cli", "reference_events", "log_schema", "site",
)  # fmt: skip
"""Of the navigation; pages that are not named come after these."""

_STYLE = """
:root { --ink: #1b1f24; --paper: #fff; --soft: #57606a; --line: #d0d7de; --code: #f3f4f6; --link: #0550ae; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9da7b3; --line: #30363d; --code: #161b22; --link: #79b8ff; }
}
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.6 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
.page { display: flex; flex-wrap: wrap; max-width: 1200px; margin: 0 auto; }
nav { flex: 1 1 12rem; padding: 1rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav a[aria-current] { font-weight: bold; color: var(--ink); }
main { flex: 999 1 30rem; min-width: 0; padding: 1rem; }
a { color: var(--link); }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere; }
pre { background: var(--code); padding: .75rem; overflow-x: auto; border-radius: 6px; }
code { background: var(--code); border-radius: 3px; font: 0.9em ui-monospace, monospace; overflow-wrap: anywhere; }
pre code { overflow-wrap: normal; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
img { max-width: 100%; height: auto; background: #fff; }
@media (max-width: 44rem) { nav { order: 2; border-top: 1px solid var(--line); } }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - hpcsched</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div class="page">
<nav aria-label="Pages"><ul>
{links}
</ul></nav>
<main>
{body}
</main>
</div>
</body>
</html>
"""


def render_site(out: Path, source: Path | None = None) -> list[Path]:
    """Write one HTML file a page into `out` (made when missing); the files. Raises InputError when that cannot be."""
    source = source or share("docs")
    texts = {file.stem: file.read_text(encoding="utf-8") for file in source.glob("*.md")}
    names = [name for name in ORDER if name in texts] + sorted(set(texts) - set(ORDER))
    titles = {name: _title(texts[name]) for name in names}
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in names:
            target = out / f"{name}.html"
            target.write_text(page(name, texts[name], titles), encoding="utf-8")
            written.append(target)
        for image in sorted((source / "images").glob("*")):
            (out / "images").mkdir(exist_ok=True)
            target = out / "images" / image.name
            target.write_bytes(image.read_bytes())
            written.append(target)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror or error}") from error
    return written


def page(name: str, text: str, titles: dict[str, str]) -> str:
    """One page's HTML. `titles`: of all pages, in the order of the navigation."""
    links = "\n".join(
        f'<li><a href="{other}.html"{" aria-current=page" if other == name else ""}>{html.escape(title)}</a></li>'
        for other, title in titles.items()
    )
    return _PAGE.format(
        title=html.escape(titles[name]), style=_STYLE, links=links, body=body_of(text, set(titles))
    )


def body_of(text: str, pages: set[str]) -> str:
    """Markdown to HTML: headings get anchors, links to pages become links to their HTML, tables may scroll."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    seen: dict[str, int] = {}
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", _anchor(_text(tokens[at + 1]), seen))
        for child in token.children or ():
            href = child.attrGet("href")
            if child.type == "link_open" and isinstance(href, str):
                child.attrSet(
                    "href",
                    re.sub(r"^([\w-]+)\.md(?=#|$)", r"\1.html", href) if _stem(href) in pages else href,
                )
    rendered: str = parser.renderer.render(tokens, parser.options, {})
    return rendered.replace("<table>", '<div class="wide" tabindex="0"><table>').replace(
        "</table>", "</table></div>"
    )


def _stem(href: str) -> str:
    return href.partition("#")[0].removesuffix(".md")


def _title(text: str) -> str:
    first = text.lstrip().partition("\n")[0]
    return first.removeprefix("#").strip().replace("`", "")


def _text(token: Any) -> str:
    return "".join(child.content for child in token.children or ())


def _anchor(text: str, seen: dict[str, int]) -> str:
    """As GitHub makes them: lower case, blanks become dashes, a number for the second of the same name."""
    name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") or "part"
    number = seen[name] = seen.get(name, -1) + 1
    return f"{name}-{number}" if number else name
