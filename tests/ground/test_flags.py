from pathlib import Path

import pytest

from jaxperf import flags
from jaxperf.errors import JaxperfError
from jaxperf.flags import Parser, add_parameter, number, whole


def demo():
    parser = Parser("demo.py", "What is shown.\n\nMore of it, with 100 %.", usage="demo.py ... -- PROGRAM")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to show")
    parser.add_argument("--size", type=whole(1), default=2000, metavar="N", help="rows of the matrices")
    parser.add_argument("--share", type=number(0, 1), default=0.5, metavar="X", help="up to 100 %")
    parser.add_argument("-c", "--count", type=whole(), default=1, metavar="N")
    parser.add_argument("--mode", choices=("eager", "jit"), default="jit", help="how to run")
    parser.add_argument("--json", type=flags.file_path)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--smoke", action="store_true")
    either.add_argument("--full", action="store_true")
    add_parameter(parser, "batch_sizes", (1, 2))
    add_parameter(parser, "rate", 0.1)
    add_parameter(parser, "split_cores", True)
    add_parameter(parser, "folder", None)
    return parser


def parse(line):
    return vars(demo().parse_args(line.split()))


DEFAULTS = {
    "names": [], "size": 2000, "share": 0.5, "count": 1, "mode": "jit", "json": None, "smoke": False,
    "full": False, "batch_sizes": (1, 2), "rate": 0.1, "split_cores": True, "folder": None,
}  # fmt: skip


def test_flags_replace_defaults_and_words_may_stand_among_them():
    assert parse("") == DEFAULTS
    line = "a --size 3 b --mode=eager -c -2 --batch-sizes 4 5 --rate 1e-3 --no-split-cores --folder x c"
    assert parse(line) == DEFAULTS | {
        "names": ["a", "b", "c"], "size": 3, "mode": "eager", "count": -2, "batch_sizes": (4, 5),
        "rate": 1e-3, "split_cores": False, "folder": Path("x"),
    }  # fmt: skip
    assert parse("--size " + "9" * 400)["size"] == 10**400 - 1


MISTAKES = {
    "--nope 3": "there is no flag --nope; what it runs, with its flags, comes after `--`",
    "--sise 3": "there is no flag --sise (did you mean --size?)",
    "--siz 3": "there is no flag --siz (did you mean --size?)",  # no flag by a part of its name
    "--size x": "--size is 'x'; give a whole number",
    "--json no/where/x.json": "--json is 'no/where/x.json', but there is no folder no; make it",
    "--size 1.5": "--size is '1.5'; give a whole number",
    "--size 0": "--size is 0; give at least 1",
    "--size -4": "--size is -4; give at least 1",
    "--size": "--size expected one argument",
    "--size 3 --size x": "--size is 'x'",
    "--share 1.5": "--share is 1.5; give at least 0 and at most 1",
    "--rate fast": "--rate is 'fast'; give a number",
    "--rate nan": "--rate is nan; give a finite number of at least 0",
    "--rate inf": "--rate is inf; give a finite number of at least 0",
    "--batch-sizes": "--batch-sizes expected at least one argument",
    "--batch-sizes 1 b": "--batch-sizes is 'b'",
    "--batch-sizes 1 0": "--batch-sizes is 0; give at least 1",
    "-c x": "--count is 'x'; give a whole number",
    "--batch_sizes 4": "there is no flag --batch_sizes (did you mean --batch-sizes?)",
    "--mode lazy": "--mode invalid choice: 'lazy'",
    "--json -": "--json is '-'; give a file",
    "--smoke=yes": "--smoke ignored explicit argument 'yes'",
    "--smoke --full": "--full not allowed with argument --smoke",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake, capfd):
    with pytest.raises(JaxperfError) as caught:
        parse(mistake)
    line = str(caught.value)
    assert MISTAKES[mistake] in line
    assert line.endswith("see `demo.py --help`") and "\n" not in line
    assert capfd.readouterr() == ("", "")  # the caller prints the line


def test_words_that_no_flag_takes_and_words_that_are_missing():
    parser = Parser("demo.py")
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    for words, line in (
        ("", "the following arguments are required: A, B"),
        ("x", "the following arguments are required: B"),
        ("x y z z", "z z: not understood"),
        ("x y --z", "there is no flag --z"),
    ):
        with pytest.raises(JaxperfError, match=f"^{line}; see"):
            parser.parse_args(words.split())
    with pytest.raises(JaxperfError, match="a word is empty"):
        parser.parse_args(["x", ""])


def test_hostile_words_are_one_line_too():
    for word in ("a\nb", "\x1b[31mred", "x" * 500, "[bold]", "--s\u202eize", "%s"):
        for arguments in (["--mode", word], ["--size", word], [f"--{word}"]):
            with pytest.raises(JaxperfError) as caught:
                demo().parse_args(arguments)
            assert not set("\n\x1b\u202e") & set(str(caught.value))
