import ast
import json

import pytest

from jaxperf.chapter import catalogue
from jaxperf.result.store import load_result
from tools import turned_pages

NAMES = [section.name for section in catalogue.SECTIONS]
# Calls that return None where a measurement does not decide.
UNDECIDED = ("above", "below", "at_least", "at_most", "within", "both")


def calls_of(name, *methods):
    tree = ast.parse((catalogue.folder() / f"{name}.py").read_text(encoding="utf-8"))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in calls if ast.unparse(call.func) in {f"s.{method}" for method in methods}]


def may_be_open(call):
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    calls = (node for node in ast.walk(given["holds"]) if isinstance(node, ast.Call))
    names = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
    return bool({"cannot", "needs"} & given.keys() or names & {*UNDECIDED})


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_has_a_sentence_for_each_outcome(name):
    calls = calls_of(name, "claim")
    assert calls
    for call in calls:
        given = {keyword.arg for keyword in call.keywords}
        needed = {"if_holds", "if_not"} | ({"if_open"} if may_be_open(call) else set())
        assert needed <= given, f"{name}.py, line {call.lineno}"


@pytest.mark.parametrize("name", NAMES)
def test_figures_have_a_text_apart_from_their_caption_and_sentences_have_no_links(name):
    for call in calls_of(name, "figure", "timeline"):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert given.get("alt") not in (None, ast.unparse(call.args[1])), f"{name}.py, line {call.lineno}"
    for call in calls_of(name, "claim", "say", "sentence"):
        assert "](" not in ast.unparse(call), f"{name}.py, line {call.lineno}: a link would not be one"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["use_gpu", "scaling"])
def test_a_run_can_be_turned_around_to_read_the_other_sentences(name, tmp_path):
    assert turned_pages.run_turned(name, tmp_path, "--smoke") == 0
    turned = load_result(tmp_path / f"{name}.json").claims
    about = json.loads((tmp_path / f"{name}.ipynb").read_text())["metadata"]["jaxperf"]
    assert about["turned"]
    assert not {claim.verdict for claim in turned} & {"undecided", "not measurable here"}
    assert all(claim.conclusion for claim in turned)
