import re
from pathlib import Path

import chromium
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "_static" / "sliders.js"
FIGURES = ("timeline", "collectives", "scaling")
pytestmark = pytest.mark.real


def test_the_figures_say_what_the_formulas_give(tmp_path):
    """They say it below the drawing, at the sliders' first places and after one was moved."""
    figures = "".join(f'<figure data-slider="{name}"></figure>' for name in FIGURES)
    moved = "<script>for (const i of document.querySelectorAll('[data-slider=timeline] input')) {"
    moved += "i.value = 20; i.dispatchEvent(new Event('input')) }</script>"
    page = tmp_path / "page.html"
    page.write_text(f"<body>{figures}<script>{SCRIPT.read_text()}</script>{moved}")
    texts = r'<figure data-slider="(\w+)"><div class="sliders">.*?<p aria-live="polite">(.*?)</p>'
    said = dict(re.findall(texts, chromium.dom(page, tmp_path, wait_ms=2000)))
    # t1 = t2 = t3 = 20: 5 (t1 + t2 + t3) with waiting; t1 + 5 t2 + t3 without; three times as fast in the end
    assert "Five turns take 300 µs with waiting in each, and 140 µs" in said["timeline"]
    assert "max(t₁, t₂) = 3.00" in said["timeline"]
    assert "100 MB on 64 devices: the formulas give the least time to two levels." in said["collectives"]
    # ResNet-18 on H200 and 400 Gb/s: section 8.9 computes 8.9 ms on one device, 4.4 ms on 64
    assert "A fixed batch of 1024 gains most on 32 devices: 2.2 times" in said["scaling"]
