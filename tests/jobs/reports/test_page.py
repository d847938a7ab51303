"""A page as a file: its content, without external resources."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from regent.jobs.reports.page import INK, MUTED, WARNING, Axes, Page, Table, shown
from regent.jobs.reports.verdict import Problem, Remedy, Verdict
from regent.testing.waits import scaled


def draw(axes: Axes) -> None:
    axes.plot([1, 1000], [0.001, 1.0], label="ring")
    axes.bar([10, 20], [0.5, 0.25], color=WARNING)
    axes.axhline(0.1, color=MUTED, linestyle="--")
    axes.text(10, 0.5, "a & b, $5", color=INK)
    axes.set_yscale("log")
    axes.set_xlabel("brokers <failed>")
    axes.legend()


def page() -> Page:
    problems = [Problem("Too <few>.", [Remedy("To mend it", "regent status 'a & b'")])]
    result = Page("Replicas of <all> brokers", Verdict(problems, ""))
    result.heading("Brokers")
    result.text("Seen & counted.")
    result.facts([("Partitions", 10_000_000)])
    result.table(Table("Per broker", ["broker", "replicas"], [["b & c", 1234567], ["d", None]]))
    result.figure(draw, 'Probability of "loss"')
    result.figure(draw, "The same again")
    return result


class Elements(HTMLParser):
    """Collects the elements with their attributes, and the text between them."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Store the element."""
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Store the text."""
        self.texts.append(data)

    @property
    def words(self) -> list[str]:
        """The texts without space around them."""
        return [text.strip() for text in self.texts]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    page().write(path)
    assert [found.name for found in path.parent.iterdir()] == ["report.html"]
    return path.read_text()


def test_a_page_has_no_external_resources(document: str):
    elements = Elements(document).found
    assert not {"script", "link", "iframe", "img", "image"} & {tag for tag, _ in elements}
    assert "http:" not in document
    assert "https:" not in document
    assert "@import" not in document
    links = [a[name] or "" for _, a in elements for name in ("href", "src") if name in a]
    assert links
    assert all(link.startswith("#") for link in links)


def test_all_texts_are_on_the_page_and_escaped(document: str):
    words = Elements(document).words
    for text in ("Replicas of <all> brokers", "Seen & counted.", "10,000,000", "b & c", "–"):
        assert text in words
    assert {"1,234,567", "Per broker", 'Probability of "loss"', "a & b, $5"} <= set(words)
    assert "brokers <failed>" in words  # text of a plot stays text


def test_a_command_stays_one_line_of_text(document: str):
    _, _, rest = document.partition("<code>")
    assert "".join(Elements(rest.partition("</code>")[0]).texts) == "regent status 'a & b'"
    assert "<p>Too &lt;few&gt;.</p>" in document


def test_a_command_that_may_lose_records_looks_different(tmp_path: Path):
    lossy = Remedy("Last", "regent elect-leaders", may_lose_records=True)
    Page("p", Verdict([Problem("Bad.", [lossy])], "")).write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert '<code class="warning"><span>regent</span>' in text
    assert "code.warning {" in text


def test_a_verdict_says_whether_all_is_fine(document: str, tmp_path: Path):
    fine = Page("Fine", Verdict([], "All is well."))
    fine.write(tmp_path / "fine.html")
    assert 'class="verdict fine"><p>All is well.</p>' in (tmp_path / "fine.html").read_text()
    assert '<section class="verdict"><p>Too' in document


def test_a_page_ends_with_the_findings_that_are_not_among_the_worst(tmp_path: Path):
    problems = [Problem(f"Finding {n}.", [Remedy("Mend", f"regent {n}")]) for n in range(5)]
    result = Page("Much", Verdict(problems, ""))
    result.text("In the middle.")
    result.write(tmp_path / "page.html")
    words = Elements((tmp_path / "page.html").read_text()).words
    places = [words.index(text) for text in ("Finding 2.", "In the middle.", "Finding 3.")]
    assert places == sorted(places)
    assert "And 2 more findings below." in words
    assert words.count("Finding 0.") == words.count("Finding 4.") == 1


def test_a_page_prints_black_on_white_in_every_color_scheme(document: str):
    style, _, _ = document.partition("</style>")
    _, _, printed = style.partition("@media print")
    assert "--page: #fff; --ink: #1b1b1a;" in printed


def test_a_box_that_scrolls_sideways_has_a_shadow_where_it_hides_something(document: str):
    style, _, _ = document.partition("</style>")
    screen, _, printed = style.partition("@media print")
    box = screen.partition(".wide {")[2].partition("}")[0]
    assert "overflow-x: auto" in box
    assert box.count("var(--page) 50%, transparent") == box.count("no-repeat local") == 2
    assert box.count("var(--shade), transparent") == box.count("no-repeat scroll") == 2
    assert ".wide { overflow: visible; background: none; }" in printed


def test_a_narrow_screen_shows_plots_that_were_drawn_for_it(document: str):
    style, _, body = document.partition("</style>")
    narrow = style.partition("@media (max-width: 600px) {")[2]
    assert "svg.wide-plot { display: none; }" in narrow
    assert "svg.narrow { display: block; }" in narrow
    assert "min-width: 30rem" not in style
    assert body.count('<svg class="narrow"') == body.count('<svg class="wide-plot"') == 2


def test_ticks_are_written_out(document: str):
    words = Elements(document).words
    assert {"1,000", "0.001"} <= set(words)


def test_plots_are_well_formed_and_their_ids_are_unique(document: str):
    plots = [part.partition("</svg>")[0] for part in document.split("<svg ")[1:]]
    assert len(plots) == 4  # each for a wide and for a narrow screen
    for plot in plots:
        ET.fromstring(f"<svg {plot}</svg>")
    ids = [a["id"] for _, a in Elements(document).found if "id" in a]
    targets = [a["href"] for tag, a in Elements(document).found if tag == "use"]
    assert len(ids) == len(set(ids))
    assert {target and target.removeprefix("#") for target in targets} <= set(ids)


def test_every_colour_follows_the_scheme(document: str):
    _, _, body = document.partition("</style>")
    assert "var(--series-1)" in body
    assert "var(--muted)" in body
    assert "var(--warning)" in body
    assert "#0100" not in body
    assert "prefers-color-scheme: dark" in document


def test_the_same_report_is_the_same_file(document: str, tmp_path: Path):
    page().write(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == document


def test_columns_of_numbers_are_right_aligned(document: str):
    assert "<th class=short>broker</th><th class=number>replicas</th>" in document


def test_a_page_that_cannot_be_written_leaves_no_file(tmp_path: Path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        page().write(tmp_path / "report.html")
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (0.000123456, "0.0001235"),
        (12.5, "12.5"),
        (1234.56, "1,235"),
        ("x", "x"),
    ],
)
def test_values_are_formatted_for_readers(value: object, text: str):
    assert shown(value) == text


def test_plots_leave_no_files_behind(tmp_path: Path):
    """The font cache of matplotlib would stay in ~/.cache and ~/.config."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MPL", "XDG_"))}
    folders = {name: str(tmp_path / name) for name in ("HOME", "TMPDIR")}
    for folder in folders.values():
        os.mkdir(folder)
    program = """
import sys
from pathlib import Path
from regent.jobs.reports.page import Page
page = Page("Plots")
page.figure(lambda axes: axes.plot([1, 2], [1, 2]), "A line")
page.write(Path(sys.argv[1]))
"""
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "page.html")],
        env=environment | folders,
        check=True,
        timeout=scaled(120),
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["HOME", "TMPDIR", "page.html"]
