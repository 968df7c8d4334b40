"""Keep a run of the sections on a GPU: its notebooks for the book's tabs, its figures for the small tables.

    jaxperf run all --platform gpu --out DIR      # on a machine with a GPU
    python tools/keep_gpu_run.py DIR              # then here
    python tools/keep_gpu_run.py FILE             # JAX's rows of a result of the comparison, kept where it is

The results go to benchmarks/results/book-gpu/, and the figures to jaxperf/chapter/one_gpu.json.
Figures of older runs stay, until this run has figures of the same name.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from jaxperf.chapter import catalogue, one_gpu
from jaxperf.errors import JaxperfError
from jaxperf.result.store import load_result, write_whole

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "results" / "book-gpu"


def figures_of_run(folder: Path) -> tuple[one_gpu.GpuRun, dict[str, list[one_gpu.Figure]]]:
    """Read the sections' results of a folder.

    Raises:
      JaxperfError: there is none, or one was not made at full size and to its end. One that ran on CPU
        devices, because it takes several, is left out.
    """
    paths = [path for s in catalogue.SECTIONS if (path := folder / f"{s.name}.json").is_file()]
    if not paths:
        raise JaxperfError(
            f"no section's result in {folder}; `jaxperf run all --platform gpu --out {folder}` makes them"
        )
    run, figures = None, {}
    for path in paths:
        result = load_result(path)
        e = result.environment
        if result.smoke or result.incomplete:
            raise JaxperfError(
                f"{path} is not a whole run: smoke {result.smoke}, incomplete {result.incomplete}"
            )
        if e.backend != "gpu":
            continue
        card = e.devices[0].partition(" ")[2]
        run = one_gpu.GpuRun(card, e.versions["jax"], result.started_at[:10], "benchmarks/results/book-gpu")
        figures[path.stem] = one_gpu.figures_of(result.blocks, run.date)
    if run is None:
        raise JaxperfError(f"no section in {folder} ran on a GPU; give --platform gpu to the run")
    return run, figures


def figures_of_comparison(file: Path) -> tuple[one_gpu.GpuRun, dict[str, list[one_gpu.Figure]]]:
    """Read JAX's rows of a result of the comparison. Older ones have another schema, but the same rows."""
    body = json.loads(file.read_text(encoding="utf-8"))
    e = body["environment"]
    if e["backend"] != "gpu":
        raise JaxperfError(f"{file} was not made on a GPU")
    source = str(file.resolve().relative_to(ROOT))
    card = e["devices"][0].partition(" ")[2]
    run = one_gpu.GpuRun(card, e["versions"]["jax"], body["started_at"][:10], source)
    figures = [
        one_gpu.Figure(m["workload"], m["configuration"], statistics.median(m["values"]), m["unit"], source)
        for m in body["measurements"]
        if m["system"] == "jax"
    ]
    return run, {one_gpu.COMPARISON: figures}


def merged(
    body: dict[str, Any], run: one_gpu.GpuRun, figures: dict[str, list[one_gpu.Figure]]
) -> dict[str, Any]:
    """Return the content of one_gpu.json with a new run's figures before the older ones."""
    made = {name for name, known in body["runs"].items() if known["source"] == run.source}
    new_name = next(figure.run for rows in figures.values() for figure in rows)
    runs = {name: known for name, known in body["runs"].items() if name not in made} | {new_name: vars(run)}
    sections = {}
    for name in {**body["figures"], **figures}:
        new = figures.get(name, [])
        # Rows of the comparison have the names of configurations, the same in every workload.
        parts = slice(0, 2) if name == one_gpu.COMPARISON else slice(1, 2)
        rows = [[f.title, f.name, f.value, f.unit, f.run] for f in new]
        known = [row[parts] for row in rows]
        older = [
            row for row in body["figures"].get(name, []) if row[4] not in made and row[parts] not in known
        ]
        sections[name] = rows + older
    return {"runs": runs, "figures": sections}


def as_json(body: dict[str, Any]) -> str:
    """Return the content of one_gpu.json with a figure on each line, so that changes are easy to read."""
    sections = []
    for name, rows in sorted(body["figures"].items()):
        lines = ",\n   ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        sections.append(f"  {json.dumps(name)}: [\n   {lines}\n  ]")
    runs = json.dumps({"runs": body["runs"]}, indent=1).removesuffix("\n}")
    return f'{runs},\n "figures": {{\n' + ",\n".join(sections) + "\n }\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the run's results, or a result of the comparison")
    folder = parser.parse_args().folder
    try:
        run, figures = figures_of_comparison(folder) if folder.is_file() else figures_of_run(folder)
    except JaxperfError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    KEPT.mkdir(parents=True, exist_ok=True)
    for name in figures if folder.is_dir() else ():
        for ending in (".json", ".ipynb"):
            if (source := folder / f"{name}{ending}").is_file() and source.resolve().parent != KEPT:
                shutil.copyfile(source, KEPT / source.name)
    body = merged(json.loads(one_gpu.FILE.read_text(encoding="utf-8")), run, figures)
    write_whole(one_gpu.FILE, as_json(body))
    print(
        f"{sum(map(len, figures.values()))} figures of {len(figures)} sections on {run.card}, JAX {run.jax}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
