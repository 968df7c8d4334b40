import re
import shlex
from pathlib import Path

import pytest

from jaxperf import cli
from jaxperf.chapter import run_sections

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")


def blocks(name, language):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)
    texts = [text for kind, text in fenced if kind == language]
    return [[line.split("#")[0].rstrip() for line in text.splitlines()] for text in texts]


def commands(name="README.md"):
    return [line for block in blocks(name, "sh") for line in block if line]


def test_both_languages_have_the_same_sections_and_commands():
    prose = [re.sub("```.*?```", "", (ROOT / name).read_text(), flags=re.S) for name in READMES]
    levels = [re.findall("^#+ ", text, re.M) for text in prose]
    assert levels[0] == levels[1] and len(levels[0]) > 4
    for language in ("sh", "python", ""):
        assert blocks(READMES[0], language) == blocks(READMES[1], language) != []


@pytest.mark.parametrize("name", READMES)
def test_links_lead_to_files(name):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert len(links) > 20 and [link for link in links if not (ROOT / link).exists()] == []


def test_what_watch_says_in_the_readme_is_from_its_transcript():
    page = (ROOT / "docs" / "watch.md").read_text(encoding="utf-8")
    (report,) = blocks("README.md", "")
    lines = [line.removesuffix("...").rstrip(" ;") for line in report]
    assert len(lines) > 5
    assert [line for line in lines if line not in page] == []


def test_every_jaxperf_command_is_understood(capsys):
    assert [c for c in commands() if not c.startswith(("make ", ".venv/bin/"))] == []
    for command in commands():
        arguments = shlex.split(command)
        if not arguments[0].endswith("jaxperf"):
            continue
        arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
        assert cli.main([arguments[1], "--help"]) == 0, command
        shown = capsys.readouterr().out
        assert [flag for flag in arguments[2:] if flag.startswith("--") and flag not in shown] == [], command
        if arguments[1] == "run":
            assert run_sections.choose_sections([word for word in arguments[2:] if not word.startswith("--")])


def test_the_example_runs_as_it_stands(capsys):
    (lines,) = blocks("README.md", "python")
    exec("\n".join(lines), {"__name__": "__main__"})
    stages, ratio = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"[\d.e-]+ s a call, compiled in [\d.e-]+ s to \d+ fusions", stages)
    assert re.match(r"eager over jit: [\d.]+ ", ratio)
