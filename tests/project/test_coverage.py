from pathlib import Path

import scripts

from jaxperf.chapter import catalogue

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_section_has_rows_and_the_table_is_up_to_date(monkeypatch):
    coverage = scripts.load("book_coverage", DOCS / "coverage.py", monkeypatch)
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.page(), "run: python docs/coverage.py"
    rows = coverage.rows()
    sections = {section.name for section in catalogue.SECTIONS} - {"peers"}  # of which the seeds have nothing
    assert sections <= rows.keys()
    assert sum(map(len, rows.values())) >= 148
