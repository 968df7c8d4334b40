"""The READMEs: both languages show the same commands and links, those commands exist, the example runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from jaxperf import cli, launch

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh-CN.md")
VALUED = ("--out", "--peers")  # flags of `run` that take a word


def blocks(name, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)
    return [text for its_language, text in found if its_language == language]


def commands(name):
    lines = [line.split("#")[0].strip() for block in blocks(name, "sh") for line in block.splitlines()]
    return [line for line in lines if line]


def code(name):
    return [[line.split("#")[0].rstrip() for line in block.splitlines()] for block in blocks(name, "python")]


def test_both_languages_show_the_same_commands_and_code():
    first, second = map(commands, READMES)
    assert first == second
    assert code("README.md") == code("README.zh-CN.md") != []


def sections(name):
    """The text from each heading to the next, without code in blocks."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.split(r"^#+ ", text, flags=re.M)[1:]


def test_both_languages_have_the_same_sections_with_the_same_links_and_words_to_type():
    english, chinese = map(sections, READMES)
    assert len(english) == len(chinese) > 5
    for first, second in zip(english, chinese):
        second = second.replace("https://zh.d2l.ai", "https://d2l.ai")  # the book, in the reader's language
        for pattern in (r"\]\((.*?)\)", r"`([^`]+)`"):
            assert sorted(set(re.findall(pattern, first))) == sorted(set(re.findall(pattern, second)))


def test_both_languages_count_the_wrong_ways_to_time_that_are_listed():
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    listed = len(re.findall(r"^\| .+? \| (?:refused|measured right|shown) \|", page, re.M))
    for name, words in zip(READMES, ("ways to time JAX wrongly", "种给 JAX 计时的错误方法")):
        assert f" {listed} {words}" in (ROOT / name).read_text(encoding="utf-8")


def test_both_languages_show_the_same_output_and_the_same_folders():
    (sample, tree), (same_sample, same_tree) = (blocks(name, "") for name in READMES)
    assert sample == same_sample
    assert folders(tree) == folders(same_tree) != []


def test_what_watch_says_in_the_readme_is_from_its_transcript():
    page = (ROOT / "docs" / "watch.md").read_text(encoding="utf-8")
    lines = [line.removesuffix("...").rstrip(" ;") for line in blocks("README.md", "")[0].splitlines()]
    assert len(lines) > 5
    assert [line for line in lines if line not in page] == []
    gain = re.search(
        r"changed program is ([\d.]+) times as fast \(([\d.]+ to [\d.]+)\)", (ROOT / "README.md").read_text()
    )
    assert gain and f"{gain[1]} ({gain[2]})" in page


def folders(tree):
    return re.findall(r"^([a-z/]+/) {2,}", tree, re.M)


def test_every_make_command_is_a_target():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    named = [shlex.split(c)[1] for c in commands("README.md") if c.startswith("make ")]
    assert {"run", "test"} <= set(named) <= set(targets)


def test_every_command_can_be_typed_as_it_stands():
    """No environment need be activated first."""
    assert [c for c in commands("README.md") if not c.startswith(("make ", ".venv/bin/"))] == []


def test_every_jaxperf_command_is_understood(capsys):
    for command in commands("README.md"):
        words = shlex.split(command)
        if not words[0].endswith("jaxperf"):
            continue
        assert cli.main([words[1], "--help"]) == 0, command
        shown = capsys.readouterr().out
        for flag in (w for w in words[2:] if w.startswith("--")):
            assert flag in shown, command
        if words[1] == "run":
            given = [w for w, before in zip(words[2:], words[1:]) if "--" not in w and before not in VALUED]
            assert launch.choose(given)


def test_the_example_runs_as_it_stands():
    (block,) = blocks("README.md", "python")  # the other language has the same but for comments
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    seconds, stages, ratio = done.stdout.splitlines()
    assert float(seconds) > 0
    assert len(stages.split()) == 3
    assert re.match(r"[\d.]+ ", ratio)


def test_folders_in_the_tree_exist():
    named = folders((ROOT / "README.md").read_text())
    assert len(named) > 5
    assert all((ROOT / folder).is_dir() for folder in named)
