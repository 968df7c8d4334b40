"""docs/coverage.md: each row of docs/coverage.toml is on a page, and the table is up to date."""

from pathlib import Path
from types import ModuleType

import pytest
import scripts

from jaxperf.chapter import catalogue
from jaxperf.errors import JaxperfError

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture
def coverage(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts.load("book_coverage", DOCS / "coverage.py", monkeypatch)


def test_each_row_is_on_its_page_and_the_table_is_up_to_date(coverage: ModuleType) -> None:
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.page(), "run: python docs/coverage.py"


def test_every_section_of_the_book_has_rows(coverage: ModuleType) -> None:
    rows = coverage.rows()
    sections = {section.name for section in catalogue.SECTIONS} - {"peers"}  # of which the seeds have nothing
    assert sections <= rows.keys()
    assert sum(map(len, rows.values())) >= 148


def test_a_phrase_that_is_on_no_page_is_named(coverage: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"hybridize": {"a row": "a phrase that nobody wrote"}, "nowhere": {"another": "x"}}
    monkeypatch.setattr(coverage, "rows", lambda: wrong)
    with pytest.raises(
        JaxperfError, match=r"no page 'nowhere'; hybridize: no 'a phrase .*', of the row 'a row'"
    ):
        coverage.page()


def test_a_row_links_to_the_heading_above_its_phrase(
    coverage: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "rows", lambda: {"hybridize": {"a row": "class HybridNet(nnx.Module):"}})
    heading = next(
        head for head, text in coverage.parts("hybridize") if "class HybridNet(nnx.Module)" in text
    )
    assert f"| a row | [{heading}](../experiments/hybridize.py#{coverage.slug(heading)}) |" in coverage.page()
    assert coverage.slug("8.1.2 A network, and `hybridize`") == "812-a-network-and-hybridize"
