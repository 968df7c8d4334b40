"""Make docs/versions.md and its plots from the kept log of benchmarks/versions/run.py.

python docs/versions_page.py              # from benchmarks/results/versions.json
python docs/versions_page.py LOG          # keep this log first
python docs/versions_page.py --check      # say whether the page is that of the kept log
"""

from __future__ import annotations

import html
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from kept_log import keep_log  # noqa: E402

from jaxperf.known_faults import FAULTS, Fault, release  # noqa: E402
from jaxperf.result.formatting import format_quantity  # noqa: E402
from jaxperf.result.markdown import table_of_markdown  # noqa: E402
from jaxperf.result.ratio import Ratio, ratio_of  # noqa: E402

KEPT = ROOT / "benchmarks" / "results" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
UPGRADES = ROOT / "benchmarks" / "results" / "2026-11-28-upgrade"
UPGRADED = {
    "numpyro_model": "NUTS samples a hierarchical model of NumPyro.",
    "train_resnet": "the network and the training of [section 8.5](../experiments/multiple_gpus_concise.py) "
    "as a script. Flax 0.12.12 needs JAX 0.11.1 or newer, so the older environment has Flax 0.12.6.",
}
PLOTS = ROOT / "docs" / "_static"
CHANGE = 1.3  # times, from which on a proven difference is marked
SLOW = 1.5  # times the nearest versions without a fault, from which on its probe shows it
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10, 20, 50, 100, 1000, 10_000)  # of the plots
FLAGS = re.compile(r'XLA_FLAGS="[^"]*"')  # outside code, the book would print "--" as a dash
REPOSITORY = "https://github.com/"


def main(words: list[str]) -> int:
    """Write the page, or check it; return the exit status."""
    if keep_log(words, __doc__, KEPT):
        same = PAGE.read_text() == page(json.loads(KEPT.read_text()))
        print("versions.md is that of the kept log" if same else "run: python docs/versions_page.py")
        return int(not same)
    log = json.loads(KEPT.read_text())
    PAGE.write_text(page(log))
    plots(log)
    return 0


# --- what the log says


def versions_of(log: dict[str, Any]) -> list[str]:
    """Return the versions in a log, the oldest first."""
    return sorted(log["versions"], key=release)


def rows_of(probe: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Return values by row ("" or a stage) and version; bytes are a row of one value."""
    rows: dict[str, dict[str, list[float]]] = {}
    for version, answer in probe["versions"].items():
        values = answer.get("values") or ({"": [answer["bytes"]]} if "bytes" in answer else {})
        for row, some in values.items():
            rows.setdefault(row, {})[version] = some
    return rows


def against(values: dict[str, list[float]], version: str, newest: str) -> Ratio | None:
    """Return a version's time over the newest's, round by round; None if one of them has no value."""
    a, b = values.get(version), values.get(newest)
    if not a or not b or not min(b):
        return None
    return ratio_of([x / y for x, y in zip(a, b, strict=True)])


def cell(answer: dict[str, Any], values: dict[str, list[float]], version: str, newest: str, unit: str) -> str:
    """Return what a table's cell says about one version: the newest's value, and the others' multiples."""
    if "ended" in answer:
        return "ended"
    if "cannot" in answer:
        return "cannot"
    if version == newest:
        return format_quantity(statistics.median(values[version]), unit) if version in values else "-"
    if (over := against(values, version, newest)) is None:
        return "-"
    text = f"{over.median:.2f}" if over.median < 100 else f"{over.median:,.0f}"
    if unit == "bytes":
        proven = max(over.median, 1 / over.median if over.median else math.inf) >= CHANGE
    else:
        proven = bool(over.above(CHANGE)) or bool(over.below(1 / CHANGE))
    return f"**{text}**" if proven else text


def shown_by(fault: Fault, log: dict[str, Any]) -> str:
    """Return on which versions the fault's probe shows it here, in words."""
    if "cpu" not in fault.platforms:
        return "not measured: it needs a GPU"
    probe = log["probes"].get(fault.probe)
    if probe is None:
        return "not measured yet"
    versions = [v for v in versions_of(log) if v in probe["versions"]]
    medians = [
        {v: statistics.median(some) for v, some in values.items()} for values in rows_of(probe).values()
    ]
    bad = []
    for version in versions:
        answer = probe["versions"][version]
        slow = any(_slower_than_neighbors(fault, version, row) for row in medians)
        if answer.get("wrong") or "ended" in answer or slow:
            bad.append(version)
    inside = [v for v in dict.fromkeys(bad) if fault.in_version(v)]
    outside = [v for v in dict.fromkeys(bad) if not fault.in_version(v)]
    affected = [v for v in versions if fault.in_version(v)]
    if not affected:
        return "no affected version in this run"
    if not inside and affected == versions:
        return "all versions here have it, so that none shows it"
    text = f"yes, on {', '.join(inside)}" if inside else f"no, not on {' or '.join(affected)}"
    return text + (f"; also on {', '.join(outside)}" if outside else "")


def _slower_than_neighbors(fault: Fault, version: str, medians: dict[str, float]) -> bool:
    """Return whether an affected version takes longer than the nearest ones without the fault."""
    if version not in medians or not fault.in_version(version):
        return False
    without = sorted((v for v in medians if not fault.in_version(v)), key=release)
    before = [v for v in without if release(v) < release(version)][-1:]
    after = [v for v in without if release(v) > release(version)][:1]
    return bool(before + after) and all(medians[version] >= SLOW * medians[v] for v in (*before, *after))


# --- the page


def page(log: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    return "\n".join(_lines(log)) + "\n"


def _lines(log: dict[str, Any]) -> Iterator[str]:
    versions = versions_of(log)
    newest = versions[-1]
    busy = statistics.median(probe["others"] for probe in log["probes"].values()) >= log["busy_cores"]
    yield "# JAX by version"
    yield ""
    yield (
        f"What became slower, faster or wrong from JAX {versions[0]} to {newest}, on a CPU. All versions ran "
        "the same small programs in turns, so that a machine that drifts does not look like a release."
    )
    yield ""
    yield (
        f"{log['machine']['cpu']}, {log['machine']['cores']} cores, {log['made']}; "
        f"{len(log['probes'])} programs, {len(versions)} versions. Made by "
        "[benchmarks/versions](../benchmarks/versions/README.md)."
    )
    if busy:
        yield ""
        yield "```{warning}"
        yield "Other programs used the machine during this run. Small differences below are noise."
        yield "```"
    yield ""
    yield "## Is your program hit?"
    yield ""
    yield "```"
    yield "jaxperf doctor                     # the known faults of the installed version"
    yield "jaxperf watch train.py             # a finding, with its line, where your program meets one"
    yield "jaxperf upgrade --python OLD/bin/python --python NEW/bin/python -- train.py    # both, in turns"
    yield "```"
    yield ""
    yield (
        "`upgrade` runs your program several times in each environment and says what became slower: the "
        "whole run, and each function's tracing, lowering, compiling and time on the device, with memory and "
        "the number of programs. Its exit status is 1 if something is slower. The environments need JAX, "
        "NumPy, SciPy, psutil and rich, and not jaxperf."
    )
    yield ""
    yield "## Known faults"
    yield ""
    yield (
        "Each is from a public issue. Times in the issues are from other machines; whether a small program "
        "shows the fault was tried here. A fault that costs time is shown if the version takes "
        f"{SLOW:g} times as long as the versions before and after it that do not have it."
    )
    yield ""
    yield from table_of_markdown(
        ["program", "jaxlib", "where", "what happens", "what to do", "shown here"],
        [
            [
                f"{_escape(fault.name)} ({_links(fault.issue)})", fault.versions, ", ".join(fault.platforms),
                _escape(fault.symptom), _escape(FLAGS.sub(r"`\g<0>`", fault.way_out)), shown_by(fault, log),
            ]
            for fault in FAULTS
        ],
    )  # fmt: skip
    yield ""
    yield "What the issues tell of the programs that were tried:"
    yield ""
    for probe in log["probes"].values():
        if probe["issue"]:
            yield f"- {_escape(probe['about'])}: {_escape(probe['told'])} ({_links(probe['issue'])})."
    yield ""
    yield from _releases(log)
    yield ""
    yield "## Two programs before and after"
    yield ""
    yield "What `jaxperf upgrade` says of two programs from JAX 0.8.2 (A) to 0.12.0.1 (B):"
    yield ""
    for name, what in UPGRADED.items():
        yield f"`{name}.py` ([program](../benchmarks/results/{UPGRADES.name}/{name}.py)): {what}"
        yield ""
        yield "```text"
        yield (UPGRADES / f"{name}.txt").read_text().strip()
        yield "```"
        yield ""
    yield "## Operation by version"
    yield ""
    yield (
        f"The column {newest} has the time of a call, or of a stage. The others have multiples of it: "
        f"2.00 is twice as long. Bold where the interval of the rounds' ratios proves a difference of "
        f"{CHANGE} times or more (95 % for each cell, six rounds at least). A process that crashed, hung, or "
        'took too much memory is "ended", and "cannot" is an error.'
    )
    for family in dict.fromkeys(probe["family"] for probe in log["probes"].values()):
        yield ""
        yield f"### {family[0].upper()}{family[1:]}"
        yield ""
        if timed(log, family):
            yield f"![Times over those of the newest, a line for each program]({_plot(family)})"
            yield ""
        yield from _family(log, family, versions)


def _releases(log: dict[str, Any]) -> Iterator[str]:
    """Yield the section on what each version changed against the one before it, the newest first."""
    versions = versions_of(log)
    yield "## From release to release"
    yield ""
    yield (
        f"What became {CHANGE} times as slow or as fast as with the version before it, where the interval of "
        "the rounds' ratios proves it. The largest changes come first. A result that became wrong, or right "
        "again, stands in the last column."
    )
    yield ""
    rows = []
    for old, new in reversed(list(itertools.pairwise(versions))):
        slower, faster, other = changes(log, old, new)
        cells = ("<br>".join(_escape(text) for text in some) or "nothing" for some in (slower, faster, other))
        rows.append([f"{old} to {new}", *cells])
    yield from table_of_markdown(["version", "slower", "faster", "wrong, ended, right again"], rows)


def changes(log: dict[str, Any], old: str, new: str) -> tuple[list[str], list[str], list[str]]:
    """Return what is proven slower and faster than in an older version, and which answers changed."""
    slower: list[tuple[float, str]] = []
    faster: list[tuple[float, str]] = []
    other = []
    for name, probe in log["probes"].items():
        for row, values in rows_of(probe).items():
            over = against(values, new, old) if probe["kind"] != "memory" else None
            said = f"{name.replace('_', ' ')}{f', {row}' if row else ''}"
            if over is not None and over.above(CHANGE):
                slower.append((over.median, f"{said}: {_times(over.median)}"))
            if over is not None and over.below(1 / CHANGE):
                faster.append((1 / over.median, f"{said}: {_times(1 / over.median)}"))
        before, after = (_failure(probe["versions"].get(version, {})) for version in (old, new))
        if before != after:
            other.append(f"{name.replace('_', ' ')}: {after or 'right again'}")
    by_size = [[text for _, text in sorted(some, reverse=True)] for some in (slower, faster)]
    return by_size[0], by_size[1], other


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times" if ratio < 100 else f"{ratio:,.0f} times"


def _failure(answer: dict[str, Any]) -> str:
    """Return "wrong", "ended" or "cannot" for an answer that is not as it should be, else ""."""
    return next((key for key in ("wrong", "ended", "cannot") if answer.get(key)), "")


def _family(log: dict[str, Any], family: str, versions: list[str]) -> Iterator[str]:
    newest, cells = versions[-1], []
    for probe in (p for p in log["probes"].values() if p["family"] == family):
        answers = {v: probe["versions"].get(v, {}) for v in versions}
        if probe["kind"] == "right":
            said = [_right(answers[v]) for v in versions]
            cells.append([_escape(probe["about"]), *said])
            continue
        unit = "bytes" if probe["kind"] == "memory" else "s"
        for row, values in (rows_of(probe) or {"": {}}).items():
            name = _escape(probe["about"]) + (f": {row}" if row else "")
            cells.append([name, *(cell(answers[v], values, v, newest, unit) for v in versions)])
    yield from table_of_markdown(["", *versions], cells, right=range(1, len(versions) + 1))


def _right(answer: dict[str, Any]) -> str:
    if "wrong" in answer:
        return "**wrong**" if answer["wrong"] else "right"
    if "ended" in answer:
        return "**ended**"
    return "cannot" if "cannot" in answer else "-"


def _escape(text: str) -> str:
    """Return text in which only code between backticks has a meaning."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([\\*_|\[\]$])", r"\\\1", html.escape(parts[i], quote=False))
    return "`".join(parts)


def _links(issues: str) -> str:
    return ", ".join(
        f"[{issue}]({REPOSITORY}{issue.replace('#', '/issues/')})" for issue in issues.split(", ")
    )


# --- plots


def _plot(family: str) -> str:
    return f"_static/versions-{family.replace(' ', '-').replace(',', '')}.svg"


def timed(log: dict[str, Any], family: str) -> list[tuple[str, dict[str, float]]]:
    """Return the programs of a family with their times over the newest's, by version."""
    versions = versions_of(log)
    lines = []
    for name, probe in log["probes"].items():
        if probe["family"] != family or probe["kind"] not in ("time", "compile", "start"):
            continue
        for row, values in rows_of(probe).items():
            over = {v: r.median for v in versions if (r := against(values, v, versions[-1])) is not None}
            if len(over) > 1 and row in ("", "compile"):
                lines.append((name.replace("_", " "), over))
    return lines


def plots(log: dict[str, Any]) -> None:
    """Write a plot for each family."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "versions", "font.size": 9})
    import matplotlib.pyplot as plt

    versions = versions_of(log)
    for family in dict.fromkeys(probe["family"] for probe in log["probes"].values()):
        if not (lines := timed(log, family)):
            continue
        figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
        for i, (name, over) in enumerate(lines):
            at = [versions.index(v) for v in over]
            dashes = ("-", "--", ":")[i // 10 % 3]
            axes.plot(at, list(over.values()), marker=".", lw=1, label=name, ls=dashes)
        axes.axhline(1, color="gray", lw=0.5)
        axes.set(yscale="log", ylabel=f"time / time with {versions[-1]}", title=family)
        low, high = axes.get_ylim()
        shown = [tick for tick in TICKS if low <= tick <= high]
        axes.set_yticks(shown, [f"{tick:,g}" for tick in shown])
        axes.minorticks_off()
        axes.set_xticks(range(len(versions)), versions, rotation=40, ha="right")
        figure.legend(loc="outside right upper", fontsize=7, frameon=False)
        figure.savefig(PAGE.parent / _plot(family), metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
