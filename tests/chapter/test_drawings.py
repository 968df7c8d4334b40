import matplotlib.pyplot as plt
import pytest

from jaxperf.chapter.drawings import QUIET, draw_timeline
from jaxperf.result import Span, Timeline

RUN = Timeline(
    "step",
    (
        Span("python", "PjitFunction(step)", 0.0, 2e-5),
        Span("wait", "outputs", 2e-5, 1e-2),
        Span("cpu 0", "ynn_fusion.12", 0.0, 4e-3),
        Span("cpu 0", "add", 4e-3, 4.1e-3),  # touches the bar before: one bar, whose longest part names it
        Span("cpu 0", "dot.3", 6e-3, 9e-3),
    ),
    1e-2,
)


@pytest.mark.parametrize("words", [None, {"ynn_fusion": "product"}])
def test_bars_have_words_and_waiting_is_quiet(words):
    figure = draw_timeline(RUN, words)
    (ax,) = figure.axes
    bars = [len(lane.get_paths()) for lane in ax.collections]
    assert bars == [1, 1, 2]
    colors = [lane.get_facecolor()[0] for lane in ax.collections]
    assert plt.matplotlib.colors.to_hex(colors[1]) == QUIET != plt.matplotlib.colors.to_hex(colors[0])
    written = [text.get_text() for text in ax.texts]
    # The call is too short for a word
    assert written == ["waits for the outputs", "product" if words else "ynn_fusion", "dot"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["python", "wait", "cpu 0"]
    plt.close(figure)


def test_ten_thousand_kernels_are_a_drawing_of_readable_size():
    kernels = tuple(Span("gpu:0", f"kernel.{i}", i * 1e-6, i * 1e-6 + 0.9e-6) for i in range(10_000))
    figure = draw_timeline(Timeline("step", kernels, 1e-2))
    (lane,) = figure.axes[0].collections
    plt.close(figure)
    # Without joining them, 10,000 bars make an image of several megabytes, and their words take minutes
    assert 1 <= len(lane.get_paths()) <= 1000
