"""Pages in a real browser; a test is skipped where there is none."""

import html
import json
import re
import shutil
import subprocess

import pytest

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def dom(page, folder, *flags, wait_ms=8000):
    """Return a page's elements as text, after its scripts; the browser keeps what it needs in the folder."""
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("needs chromium")
    own = (f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={wait_ms}", "--dump-dom")
    command = [chromium, *FLAGS, *flags, *own, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True).stdout


def measured(page, width, folder):
    """Return what a page of that width tells its parent as JSON."""
    frame = folder / "frame.html"
    frame.write_text(
        "<script>addEventListener('message', e => { const p = document.createElement('p');"
        "p.id = 'measured'; p.textContent = e.data; document.body.append(p) })</script>"
        f'<body><iframe src="{page.as_uri()}" style="width:{width}px;height:900px;border:0"></iframe>'
    )
    text = dom(frame, folder, f"--window-size={width + 200},1000")
    return json.loads(html.unescape(re.findall(r'<p id="measured">(.*?)</p>', text, re.S)[0]))
