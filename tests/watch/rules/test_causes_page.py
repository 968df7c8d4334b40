import importlib.util
from pathlib import Path

from jaxperf.watch.rules import CAUSES
from jaxperf.watch.rules.table import KINDS

SCRIPT = Path(__file__).parents[3] / "docs" / "watch_causes.py"


def test_the_page_of_causes_is_as_the_table_makes_it():
    spec = importlib.util.spec_from_file_location("watch_causes", SCRIPT)
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = script.page()
    assert script.PAGE.read_text(encoding="utf-8") == text
    assert all(f"| {name} |" in text for name in CAUSES) and all(f"\n## {kind}\n" in text for kind in KINDS)
