"""A report as one HTML file of sentences, tables and plots, which needs only a browser.

Plots, as SVG, and style are in the page: it loads no script, font or picture. Every colour is a CSS
variable, so that the page follows the reader's choice of light or dark. The same report is the same
file, byte by byte.
"""

from __future__ import annotations

import atexit
import html
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from regent.jobs.reports.verdict import Findings, Verdict

if TYPE_CHECKING:  # the import takes half a second, and most reports have no plots
    import matplotlib.axes

Axes: TypeAlias = "matplotlib.axes.Axes"

_COLOURS: Final = {
    "ink": ("#1b1b1a", "#f1f0ec"),
    "muted": ("#6d6b64", "#a3a199"),
    "grid": ("#e2e0d9", "#34332f"),
    "series-1": ("#2a78d6", "#4a94ea"),
    "series-2": ("#6a4fc4", "#a593f3"),
    "series-3": ("#16869b", "#35b2c9"),
    "good": ("#14946a", "#25b184"),
    "warning": ("#d9731e", "#ec8f3f"),
    "bad": ("#c4302b", "#ef6f69"),
}
"""The light and the dark colours of a page, by the names of CSS variables."""
_DRAWN: Final = {name: f"#01000{number}" for number, name in enumerate(_COLOURS)}
"""The placeholder of each colour in a drawing."""
INK: Final = _DRAWN["ink"]
"""The colour of text, to draw with."""
MUTED: Final = _DRAWN["muted"]
"""The colour of things for comparison."""
GOOD, WARNING, BAD = (_DRAWN[name] for name in ("good", "warning", "bad"))
"""The colours of what works, of what needs attention, and of what failed; nothing else has them."""
_SHORT: Final = 24  # letters that are not wrapped in a table
_FEW_BROKERS: Final = 20  # tables have that many
_MOST_BROKERS: Final = 5000  # half a megabyte
_WIDTHS_IN: Final = {"wide-plot": 8.4, "narrow": 3.7}
"""How wide a plot is drawn, by the class of its element: a screen shows one of them."""
_MATPLOTLIB_FOLDER: Final = "MPLCONFIGDIR"

_STYLE: Final = """
:root { color-scheme: light dark; --page: #fcfcfa; --shade: rgb(128 128 128 / 65%%);
  %(light)s }
@media (prefers-color-scheme: dark) { :root { --page: #191917; %(dark)s } }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--page);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 0.5rem; }
p { max-width: 60rem; }
.verdict { border-left: 0.35rem solid var(--warning); padding: 0.1rem 0 0.1rem 1rem;
  font-size: 1.1rem; }
.verdict.fine { border-color: var(--good); }
.verdict p { margin: 0.4rem 0; }
.verdict .purpose { font-size: 1rem; margin-top: 0.9rem; }
code { font: 0.9rem/1.5 ui-monospace, monospace; display: block; white-space: pre-wrap;
  border: 1px solid var(--grid); border-radius: 0.3rem; padding: 0.4rem 0.6rem;
  max-width: 44rem; user-select: all; }
code.warning { border: 2px dashed var(--bad); }
code.warning::before { content: "⚠ "; user-select: none; }
code span { display: inline-block; max-width: 100%%; }  /* a line does not end in an option */
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: 1rem;
  margin: 1.5rem 0; }
dl div { display: flex; flex-direction: column; justify-content: end; }
dt { color: var(--muted); font-size: 0.85rem; }
dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
figure { margin: 1.75rem 0; }
figcaption { padding-bottom: 0.4rem; font-size: 0.95rem; }
.table figcaption, summary { font-weight: 600; padding: 0; }
summary { cursor: pointer; font-size: 0.95rem; }
.wide { overflow-x: auto; background:  /* a shadow at each end that hides something */
  linear-gradient(to right, var(--page) 50%%, transparent) left / 3rem 100%% no-repeat local,
  linear-gradient(to left, var(--page) 50%%, transparent) right / 3rem 100%% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 1.5rem calc(100%% - 2px)
    no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 1.5rem calc(100%% - 2px)
    no-repeat scroll; }
svg { display: block; width: 100%%; height: auto; }
svg.narrow { display: none; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text, svg tspan { font-family: system-ui, sans-serif !important; }
table { border-collapse: collapse; min-width: 60%%; font-size: 0.9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 1.1rem 0.3rem 0; text-align: left; vertical-align: top;
  max-width: 24rem; min-width: 2rem; white-space: pre-wrap; }
th { border-bottom: 1px solid var(--muted); font-weight: 600; vertical-align: bottom;
  overflow-wrap: normal; color: var(--muted); }
td { border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); }
td:not([class]) { min-width: 8rem; }
th.number { text-align: right; }
td.number { text-align: right; white-space: nowrap; }
td.short { white-space: pre; }
@media (max-width: 600px) {
  svg.wide-plot { display: none; }
  svg.narrow { display: block; }
  th, td { padding-right: 0.6rem; }
  th:first-child, td:first-child { position: static; background: none; }
}
@media print {
  @page { margin: 12mm; }
  :root { color-scheme: light; --page: #fff; %(light)s }
  body { padding: 0; max-width: none; font-size: 10pt; }
  h2, figcaption { break-after: avoid; }
  figure:not(.table), tr, .verdict, dl { break-inside: avoid; }
  figure { max-width: 16cm; }
  .wide { overflow: visible; background: none; }
  th:first-child, td:first-child { position: static; }
  table { font-size: 7.5pt; }
  th, td, td[class], td:not([class]) { padding-right: 0.4rem; min-width: 0;
    white-space: pre-wrap; }
}
"""


class Table(NamedTuple):
    """One table of a report; each row has a value for each header."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]

    @classmethod
    def of(cls, caption: str, columns: Mapping[str, Sequence[object]]) -> Table:
        """Return a table of columns of the same length, by their headers."""
        return cls(caption, [*columns], [*zip(*columns.values(), strict=True)])

    def fields(self) -> list[dict[str, object]]:
        """Return the rows as JSON values."""
        names = [header.replace(" ", "_") for header in self.headers]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


class Page:
    """A page; parts are added from top to bottom, between the first and the other findings."""

    def __init__(self, title: str, verdict: Verdict | None = None) -> None:
        self._title = title
        self._parts: list[str] = []
        self._end: list[str] = []
        self._figures = 0
        if verdict:
            self._parts.append(_section(verdict.first, "" if verdict.problems else " fine"))
            if verdict.others.sentences:
                self._end = ["<h2>More findings</h2>", _section(verdict.others)]

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, sentence: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{html.escape(sentence)}</p>")

    def facts(self, facts: Iterable[tuple[str, object]]) -> None:
        """Add names and values, with large values: the main results."""
        pairs = (
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(shown(value))}</dd></div>"
            for name, value in facts
        )
        self._parts.append(f"<dl>{''.join(pairs)}</dl>")

    def table(self, table: Table, *, is_folded: bool = False) -> None:
        """Add a table; ``is_folded``: a click on its caption shows it.

        Columns of numbers are aligned to the right.
        """
        columns = list(zip(*table.rows, strict=True)) or [()] * len(table.headers)
        classes = [_class_of(column) for column in columns]
        head = _row("th", table.headers, classes)
        body = "\n".join(_row("td", map(shown, row), classes) for row in table.rows)
        caption = html.escape(table.caption)
        content = (
            f'<div class="wide"><table><thead>{head}</thead>\n<tbody>{body}</tbody></table></div>'
        )
        self._parts.append(
            f"<details><summary>{caption}</summary>\n{content}</details>"
            if is_folded
            else f'<figure class="table"><figcaption>{caption}</figcaption>\n{content}</figure>'
        )

    def all_brokers(self, table: Table) -> None:
        """Add a folded table of all brokers, unless another table has them or they are too many."""
        if _FEW_BROKERS < len(table.rows) <= _MOST_BROKERS:
            self.table(table, is_folded=True)

    def figure(self, draw: Callable[[Axes], None], caption: str, *, height_in: float = 3.0) -> None:
        """Add a plot: ``draw`` gets axes to draw on, once for each width of a screen.

        Colours come from the axes' cycle (``C0`` to ``C2``), INK, MUTED, GOOD, WARNING and
        BAD. Ticks without a formatter get thousands separators.
        """
        self._figures += 1
        label = html.escape(caption, quote=True)
        plots = ""
        for kind, width_in in _WIDTHS_IN.items():
            svg = _drawn(draw, width_in, height_in, f"f{self._figures}{kind[0]}")
            element = f'<svg class="{kind}" role="img" aria-label="{label}" '
            plots += svg.replace("<svg ", element, 1)
        caption = html.escape(caption)
        self._parts.append(f"<figure><figcaption>{caption}</figcaption>\n{plots}</figure>")

    def write(self, path: Path) -> None:
        """Write the page atomically; an existing file is replaced. Raises OSError."""
        title, parts = html.escape(self._title), "\n".join(self._parts + self._end)
        unfinished = path.with_name(f"{path.name}.part")
        try:
            unfinished.write_text(
                f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
                f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
                f"<title>{title}</title>\n<style>{_stylesheet()}</style>\n</head>\n<body>\n"
                f"<h1>{title}</h1>\n{parts}\n</body>\n</html>\n",
                encoding="utf-8",
            )
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def shown(value: object) -> str:
    """Return the text of a value: thousands separators, four digits, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def is_number(values: Sequence[object]) -> bool:
    """Whether the values of a column are numbers, perhaps with units."""
    numbers = [value for value in values if value is not None]
    return bool(numbers) and all(
        isinstance(value, int | float) or re.match(r"[-+<≤>≥]? ?[\d.,]+( \S+)?$", str(value))
        for value in numbers
    )


def _section(findings: Findings, kind: str = "") -> str:
    parts = [f"<p>{html.escape(sentence)}</p>" for sentence in findings.sentences]
    for purpose, command, may_lose_records in findings.remedies:
        warning = ' class="warning"' if may_lose_records else ""
        parts.append(f'<p class="purpose">{html.escape(purpose)}:</p>')
        words = (f"<span>{html.escape(word)}</span>" for word in command.split(" "))
        parts.append(f"<code{warning}>{' '.join(words)}</code>")
    return f'<section class="verdict{kind}">{"".join(parts)}</section>'


def _stylesheet() -> str:
    light = " ".join(f"--{name}: {colour};" for name, (colour, _) in _COLOURS.items())
    dark = " ".join(f"--{name}: {colour};" for name, (_, colour) in _COLOURS.items())
    return _STYLE % {"light": light, "dark": dark}


def _class_of(column: Sequence[object]) -> str:
    if is_number(column):
        return " class=number"
    return " class=short" if all(len(shown(value)) <= _SHORT for value in column) else ""


def _row(tag: str, cells: Iterable[str], classes: Sequence[str]) -> str:
    columns = zip(cells, classes, strict=True)
    return f"<tr>{''.join(f'<{tag}{c}>{html.escape(cell)}</{tag}>' for cell, c in columns)}</tr>"


# --- plots ----------------------------------------------------------------------------------------


@cache
def _matplotlib() -> Any:
    """Import matplotlib, with its font cache in a directory that this process removes."""
    if _MATPLOTLIB_FOLDER not in os.environ:
        directory = Path(tempfile.mkdtemp(prefix="regent-plots-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        os.environ[_MATPLOTLIB_FOLDER] = str(directory)
    import matplotlib

    return matplotlib


def _drawn(draw: Callable[[Axes], None], width_in: float, height_in: float, name: str) -> str:
    """Return the SVG element of a plot; its ids begin with ``name``."""
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_settings()):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        for axis in (axes.xaxis, axes.yaxis):
            _write_out_ticks(axis)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return _inline(svg.getvalue(), name)


def _settings() -> Any:  # matplotlib's type for it has a literal of every name there is
    from cycler import cycler

    series = [colour for name, colour in _DRAWN.items() if name.startswith("series")]
    ink = ("text.color", "axes.titlecolor", "axes.labelcolor", "xtick.labelcolor")
    return {
        **dict.fromkeys((*ink, "ytick.labelcolor", "legend.labelcolor"), INK),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.prop_cycle": cycler(color=series),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "date.converter": "concise",
        "figure.facecolor": "none",
        "font.sans-serif": ["DejaVu Sans"],  # for measures; the browser uses its own
        "font.size": 9.5,
        "grid.color": _DRAWN["grid"],
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "path.simplify": False,
        "lines.linewidth": 1.6,
        "patch.linewidth": 0.0,
        "savefig.facecolor": "none",
        "text.parse_math": False,
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "regent",  # else ids would differ from run to run
    }


def _write_out_ticks(axis: Any) -> None:
    from matplotlib.ticker import LogFormatter, NullFormatter, ScalarFormatter

    if isinstance(axis.get_major_formatter(), ScalarFormatter | LogFormatter):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    if isinstance(axis.get_minor_formatter(), LogFormatter):
        axis.set_minor_formatter(NullFormatter())


def _inline(document: str, name: str) -> str:
    """Convert an SVG document to an element of a page with several plots and two colour schemes."""
    svg = document[document.index("<svg ") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'xlink:href="#', f'href="#{name}-', svg)
    svg = re.sub(r' id="', f' id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    # Hundredths of a point are enough, and most of the page is coordinates.
    svg = re.sub(r'="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
    for name, colour in _DRAWN.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg
