"""Flags from frozen dataclasses: what they set, and that every mistake is one line that helps."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from jaxperf import flags
from jaxperf.errors import JaxperfError
from jaxperf.flags import at_least, between, more_than


@dataclass(frozen=True)
class Config:
    size: int = 2000
    """Rows of the matrices."""
    rate: float = 0.1
    """Learning rate."""
    sizes: tuple[int, ...] = (1, 2)
    """Sizes to try."""
    mode: Literal["eager", "jit"] = "jit"
    """How to run."""
    quiet: bool = False
    """Say less."""
    out: Path | None = None
    """Where to write."""
    model: Literal["small", "large"] | None = None
    """What to train."""
    count: Annotated[int, tyro.conf.arg(aliases=["-c"])] = 1
    """How many."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise JaxperfError(f"--size is {self.size}; it is at least 1")


def parse(*args: str, default: Config | None = None) -> Config:
    return flags.parse(Config, args=args, default=default, prog="demo.py", description="What is shown.")


def test_without_flags_the_defaults_hold() -> None:
    assert parse() == Config()
    assert parse(default=Config(size=7)) == Config(size=7)


def test_each_field_is_a_flag() -> None:
    numbers = ("--size", "3", "--rate", "1e-3", "--sizes", "4", "5", "6")
    assert parse(*numbers, "--mode", "eager", "--quiet", "--out", "a/b") == Config(
        3, 1e-3, (4, 5, 6), "eager", True, Path("a/b")
    )


def test_flags_win_over_the_given_default() -> None:
    assert parse("--size", "3", default=Config(size=7, rate=0.5)) == Config(size=3, rate=0.5)


MISTAKES = {
    "--nope 3": "--nope",
    "--sise 3": "did you mean --size?",
    "--size x": "--size is 'x'; give a whole number",
    "--size 1.5": "'1.5'",
    "--size 0": "--size is 0; it is at least 1",
    "--size -4": "--size is -4; it is at least 1",
    "--size": "Missing value for argument '--size'",
    "--rate fast": "--rate is 'fast'; give a number",
    "--sizes 1 b": "--sizes",
    "--mode lazy": "Expected one of ('eager', 'jit');",
    "--mode jti": "Expected one of ('eager', 'jit') (did you mean jit?)",
    "--model larg": "Expected one of ('large', 'small') (did you mean large?)",
    "-c x": "--count is 'x'; give a whole number",
    "--quiet yes": "yes",
    "extra": "extra",
    "--size 3 --size x": "'x'",
}


def assert_one_helpful_line(error: JaxperfError, part: str) -> None:
    line = str(error)
    assert part in line
    assert "\n" not in line
    assert not set("│╭╰─\x1b") & set(line)
    assert "not understood" not in line
    assert "--help" in line or "at least" in line


def test_a_mistake_is_one_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in ("", "20", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("FORCE_COLOR", "1" if columns == "20" else "")
        for mistake, part in MISTAKES.items():
            with pytest.raises(JaxperfError) as caught:
                parse(*mistake.split())
            assert_one_helpful_line(caught.value, part)
            assert capfd.readouterr() == ("", "")  # the caller prints the line; nothing else is
            assert os.environ["COLUMNS"] == columns


def test_a_mistake_is_one_line_in_a_terminal_without_utf_8() -> None:
    """There tyro draws no box."""
    program = (
        "import sys; sys.path.insert(0, 'tests/ground'); import test_flags as t\n"
        "for mistake in ('--nope 3', '--sise 3', '--size x'):\n"
        "    try: t.parse(*mistake.split())\n"
        "    except t.JaxperfError as e: t.assert_one_helpful_line(e, t.MISTAKES[mistake])\n"
        "    else: raise AssertionError(mistake)"
    )
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1", "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True, cwd=root)


def test_a_long_word_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    word = "--" + "x" * 150
    for columns in ("20", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(JaxperfError, match=word):
            parse(word)


def test_hostile_words_are_one_line_too() -> None:
    for word in ("a\nb", "\x1b[31mred", "x" * 500, "[bold]", "--s\u202eize"):
        for arguments in ([word], ["--size", word], [f"--{word}"]):
            with pytest.raises(JaxperfError) as caught:
                parse(*arguments)
            assert "\n" not in str(caught.value)
            assert "\x1b" not in str(caught.value)


def test_help_is_laid_out_for_forty_columns_at_least(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich takes minutes to lay it out for one to five."""
    shown = []
    for columns in ("40", "1", "5", "-3"):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit):
            parse("--help")
        assert os.environ["COLUMNS"] == columns
        shown.append(capsys.readouterr().out)
    assert "--size INT" in shown[0]
    assert shown[0] == shown[1] == shown[2]


def test_help_lists_every_flag_with_its_meaning_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert not caught.value.code
    shown = capsys.readouterr().out
    assert "What is shown." in shown
    for word in ("--size INT", "Rows of the matrices.", "2000", "--rate", "--mode {eager,jit}", "--quiet"):
        assert word in shown
    assert "--no-quiet" not in shown


@dataclass(frozen=True)
class Bounded:
    rounds: Annotated[int, at_least(1)] = 3
    rate: Annotated[float, more_than(0)] = 0.1
    share: Annotated[float, between(0, 1)] = 0.5
    sizes: Annotated[tuple[int, ...], at_least(4)] = (4, 8)
    most: Annotated[int | None, at_least(1)] = None


def test_bounds_are_in_the_types_and_a_number_may_be_of_any_size() -> None:
    assert flags.parse(Bounded, args=["--rounds", "9" * 400], prog="p").rounds == 10**400 - 1
    assert flags.parse(Bounded, args=["--rate", "1e-9", "--share", "1"], prog="p") == Bounded(
        rate=1e-9, share=1.0
    )
    for arguments, line in {
        "--rounds 0": "--rounds is 0; give at least 1",
        "--rate 0": "--rate is 0.0; give more than 0",
        "--rate nan": "--rate is nan; give more than 0",
        "--rate inf": "--rate is inf; give more than 0",
        "--share 1.5": "--share is 1.5; give at least 0 and at most 1",
        "--sizes 8 3": "--sizes is 3; give at least 4",
        "--sizes": "--sizes is empty; give at least one number",
        "--most 0": "--most is 0; give at least 1",
    }.items():
        with pytest.raises(JaxperfError) as caught:
            flags.parse(Bounded, args=arguments.split(), prog="p")
        assert str(caught.value) == line
