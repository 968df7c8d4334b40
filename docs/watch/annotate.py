"""Turn the findings of `jaxperf watch --json watch.json train.py` into annotations of a pull request."""

import json
import sys
from pathlib import Path

report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
assert report["findings_version"] == 1, "another version of the findings: see docs/watch-json.md"
for finding in report["findings"]:
    site, saving = finding["site"], finding["saving"]
    about = f"{finding['evidence']}. {finding['change']}".replace("\n", " ")
    title = f"{finding['title']}: up to {saving['share']:.0%} of the run ({finding['confidence']})"
    print(f"::warning file={site['file']},line={site['line']},title={title}::{about}")
