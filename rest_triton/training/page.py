"""One HTML page that needs no other file: tables, and pictures within it."""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #222; --dim: #666; --line: #ddd; --paper: #fff; --shade: #f5f5f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --dim: #a0a0a0; --line: #3a3a3a; --paper: #181818; --shade: #242424; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.3rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } a { color: inherit; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 1.5rem 0.25rem 0; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
th { font-weight: normal; color: var(--dim); } table.seeds td { white-space: nowrap; }
tr.mean td { font-weight: bold; border-bottom: 0; }
figure { margin: 1.5rem 0; } figcaption { color: var(--dim); font-size: 0.9rem; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
pre { background: var(--shade); padding: 0.8rem; border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere; }
.note { background: var(--shade); padding: 0.6rem 0.8rem; border-left: 3px solid #d55e00; }
"""


@dataclass(frozen=True)
class Picture:
    """``draw`` makes the PNG."""

    name: str
    caption: str
    draw: Callable[[], bytes]


def draw_all(folder: Path, pictures: Iterable[Picture]) -> list[str]:
    """The pictures' part of the page; each is also written beside it. Without matplotlib, a sentence that says so."""
    parts = []
    for picture in pictures:
        try:
            png = picture.draw()
        except ImportError as error:
            return [
                f'<p class="note">There are no pictures: matplotlib cannot be imported ({escape(str(error))}). '
                "Install it with <code>pip install matplotlib</code> and write this report again.</p>"
            ]
        (folder / picture.name).write_bytes(png)
        caption, data = escape(picture.caption), base64.b64encode(png).decode()
        image = f'<img src="data:image/png;base64,{data}" alt="{caption}">'
        parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    return parts


def percent(value: float) -> str:
    """NaN is the score of a part of the split that holds nobody."""
    return "-" if value != value else f"{100 * value:.2f} %"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f"<table>{cells}</table>"


def write_page(folder: Path, title: str, sentence: str, body: Sequence[str]) -> Path:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    top = f"<h1>{escape(title)}</h1><p>{escape(sentence)}</p>"
    page = folder / "report.html"
    text = "\n".join(
        ["<!doctype html>", f'<html lang="en"><head>{head}<style>{STYLE}</style></head>', f"<body>{top}", *body]
    )
    page.write_text(f"{text}\n</body></html>\n", encoding="utf-8")
    return page
