import dataclasses
from pathlib import Path

from jaxperf.chapter import one_gpu
from jaxperf.result import Environment, Fact, Measurement, Result, Table, load_result
from tools import keep_gpu_run

ROOT = Path(__file__).resolve().parents[2]
GPU = Environment(backend="gpu", devices=("cuda:0 NVIDIA H200",), versions={"jax": "0.12.0"})
CALLS = Table(
    "Calls of 100", (Measurement("jit", "s", (1e-3, 2e-3, 3e-3)), Measurement("eager", "s", (1.0,)))
)


def result(name, environment=GPU, **changes):
    made = Result(
        name, "8.1", "A", "?", {}, environment, (CALLS, Fact("t1", 2e-5, "s")), started_at="2026-11-28T05:00"
    )
    return dataclasses.replace(made, **changes)


def test_every_kept_figure_is_in_the_results_of_its_run():
    one_gpu.kept.cache_clear()
    runs, figures = one_gpu.kept()
    for section, rows in figures.items():
        for figure in rows:
            folder = ROOT / runs[figure.run].source
            if section == one_gpu.COMPARISON:
                assert figure in keep_gpu_run.figures_of_comparison(folder)[1][section]
            elif isinstance(figure.value, str):  # taken over from a log
                assert figure.value in (folder / f"{section}.log").read_text(), figure
            else:
                found = one_gpu.figures_of(load_result(folder / f"{section}.json").blocks, figure.run)
                assert figure in found
