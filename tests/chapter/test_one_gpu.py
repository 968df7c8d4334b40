from pathlib import Path

from jaxperf.chapter import one_gpu
from jaxperf.result import load_result
from tools import keep_gpu_run

ROOT = Path(__file__).resolve().parents[2]


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
