import io

import pytest
from rich.console import Console

from jaxperf.errors import JaxperfError
from jaxperf.train import Animator, check_picture

NAN, INF = float("nan"), float("inf")


def animator(points, *, names=("loss", "accuracy"), **options):
    found = Animator("epoch", names, **options)
    for x, y in enumerate(points, 1):
        found.add(x, y)
    return found


def test_each_curve_is_a_line_of_blocks_with_its_newest_value():
    lines = animator([(2.0, 0.1), (1.0, 0.5), (0.0, 0.9)]).text().splitlines()
    assert lines == ["loss     █▄  0", "accuracy  ▄█ 0.9", "epoch 3"]


def test_a_given_range_is_drawn_and_what_leaves_it_stops_at_its_ends():
    first = animator([(0.5,), (-9.0,), (9.0,)], names=("a",), ylim=(0, 1)).text().splitlines()[0]
    assert first == "a ▄ █ 9"


def test_values_that_are_not_finite_are_marked_and_do_not_flatten_the_rest():
    first = animator([(0.0,), (NAN,), (1.0,), (INF,), (-INF,)], names=("a",)).text().splitlines()[0]
    assert first == "a  ?█?? -inf"


@pytest.mark.parametrize("value", [3.0, NAN])
def test_a_curve_without_a_range_can_be_drawn(value, tmp_path):
    found = animator([(value,)] * 2, names=("a",))
    assert len(found.text().splitlines()) == 2
    found.save(tmp_path / "flat.png")
    assert (tmp_path / "flat.png").stat().st_size


def test_a_long_curve_keeps_its_newest_values_in_a_line_of_forty():
    line = animator([(float(i),) for i in range(100)], names=("a",)).text().splitlines()[0]
    blocks = line.removeprefix("a ").removesuffix(" 99")
    assert (len(blocks), blocks[-1]) == (40, "█")


def test_without_points_there_is_no_text():
    assert animator([]).text() == ""


def test_points_are_kept_for_whoever_wants_them():
    found = animator([(2, 1), (3, 4)])
    assert (found.X, found.Y) == ([1, 2], [[2.0, 3.0], [1.0, 4.0]])


@pytest.mark.parametrize("values", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_another_number_of_values_than_of_curves_is_refused_and_adds_nothing(values):
    found = animator([(1.0, 2.0)])
    with pytest.raises(JaxperfError, match=f"^{len(values)} values for 2 curves; give one for each$"):
        found.add(2, values)
    assert (found.X, found.Y) == ([1], [[1.0], [2.0]])


def shown(*, terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with Animator("epoch", ["loss"], console=console) as found:
        found.add(1, (2.0,))
        found.add(2, (1.25,))
    return console.file.getvalue()


def test_on_a_terminal_the_curves_grow_and_the_cursor_comes_back():
    text = shown(terminal=True)
    assert text.index("epoch 1") < text.index("epoch 2")
    assert "1.25" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_the_terminal_is_given_back_when_training_fails():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with pytest.raises(ZeroDivisionError), Animator("epoch", ["loss"], console=console):
        1 / 0  # noqa: B018
    text = console.file.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_where_there_is_no_terminal_nothing_is_drawn():
    assert shown(terminal=False) == ""


@pytest.mark.parametrize(("ending", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_picture_is_of_the_kind_its_ending_says(ending, begins, tmp_path):
    path = tmp_path / "new" / f"curve.{ending}"
    animator([(2.0, 0.1), (NAN, 0.5), (1.0, INF)]).save(path)
    assert path.read_bytes().startswith(begins)


def test_the_picture_names_curves_and_axis(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("matplotlib").rcParams, "svg.fonttype", "none")
    animator([(2.0, 0.1)], ylim=(0, 3)).save(tmp_path / "curve.svg")
    text = (tmp_path / "curve.svg").read_text()
    assert all(f">{name}<" in text for name in ("loss", "accuracy", "epoch"))


def test_what_cannot_be_drawn_is_told_in_one_line_and_leaves_no_file(tmp_path):
    (tmp_path / "file").write_text("")
    found = animator([(1.0, 2.0)])
    for path, message in (
        (tmp_path / "file" / "curve.png", "^cannot write .*curve.png.*; give another path$"),
        (tmp_path / "curve.docx", "docx is not a picture format; use .svg or .png$"),
        (tmp_path / "curve", "no ending is not a picture format"),
    ):
        for call in (check_picture, found.save):
            with pytest.raises(JaxperfError, match=message) as caught:
                call(path)
            assert "\n" not in str(caught.value)
    check_picture(tmp_path / "curve.PNG")  # leaves nothing behind either
    with pytest.raises(JaxperfError, match="no point was added"):
        animator([]).save(tmp_path / "curve.png")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_picture_that_fails_half_way_keeps_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "curve.png"
    animator([(1.0, 2.0)]).save(path)
    before = path.read_bytes()

    def fail(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(JaxperfError, match="No space left"):
        animator([(3.0, 4.0)]).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["curve.png"]
