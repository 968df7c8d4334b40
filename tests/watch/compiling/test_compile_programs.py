import json

import children
import compile_programs as texts
import pytest

from jaxperf import cli
from jaxperf.watch.compiling import words


@pytest.fixture(autouse=True)
def everything_is_worth_a_sentence(monkeypatch):
    for name in ("WORTH", "BRIEF_S", "LITTLE"):
        monkeypatch.setattr(words, name, 0.0)


def hints_of(report, word):
    return [hint for hint in words.sentences(report)[1] if word in hint]


def watched(folder, text, **variables):
    (folder / "train.py").write_text(text)
    variables["JAX_NUM_CPU_DEVICES"] = "1"
    done = children.run("-m", "jaxperf", "watch", "--compiles", "out", "train.py", folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    assert "Page: " in done.stderr and (folder / "out" / "train.html").is_file()
    return json.loads((folder / "out" / "train.json").read_text())


def row(report, name):
    [found] = [each for each in report["by_function"] if each["name"] == name]
    return found


def test_a_setup_outside_jit_is_counted_and_jitting_it_shows_in_the_comparison(tmp_path, capfd):
    reports = []
    for name, jit in (("eager", ""), ("jitted", "baselines = jax.jit(baselines, static_argnums=0)")):
        (tmp_path / name).mkdir()
        report = watched(tmp_path / name, texts.SETUP.replace("JIT", jit))
        reports.append(report)
        if not jit:
            assert row(report, "baselines")["kind"] == "operation"
            assert row(report, "baselines")["programs"] >= 20
            lines = {line["source"] for line in row(report, "baselines")["lines"]}
            assert "a = jnp.sin(r) + 2.0" in lines and "b = jnp.sqrt(a * r + 0.5)" in lines
            (hint,) = hints_of(report, "single operations outside jit")
            assert "baselines (train.py)" in hint and "jit baselines" in hint
        else:
            assert (row(report, "baselines")["kind"], row(report, "baselines")["programs"]) == ("function", 3)
        assert row(report, "step")["programs"] == 3
        assert row(report, "step")["reasons"] == {"first call": 1, "new shape": 2}
        assert sum(report["stages"].values()) == pytest.approx(report["wall_s"], rel=0.01)
    sides = [str(tmp_path / name / "out") for name in ("eager", "jitted")]
    flags = ["--compiles-compare", *sides, "--compiles", str(tmp_path / "both")]
    assert cli.main(["watch", *flags]) == 0
    out, _ = capfd.readouterr()
    shown = " ".join(out.split())
    assert "The first compiles " in shown and "the largest difference first" in shown
    programs = {(pair["kind"], pair["name"]): pair["programs"] for pair in words.differences(*reports)}
    assert programs["operation", "baselines"][1] == 0
    assert (tmp_path / "both" / "compare.html").is_file()


def test_a_static_value_that_varies_is_the_reason_of_the_repeats(tmp_path):
    report = watched(tmp_path, texts.REPEATS)
    step = row(report, "step")
    assert step["programs"] == 12 and step["reasons"] == {"static value": 11, "first call": 1}
    assert "rate: 0.1 -> 0.05" in step["changes"][0]
    assert step["source"] == "w = step(w, rate=0.1 / (1 + turn))"
    (hint,) = hints_of(report, "step (train.py:11) is compiled 12 times")
    assert "make it an ordinary argument" in hint


def test_the_line_that_splits_keys_in_each_module_has_most_instructions(tmp_path):
    report = watched(tmp_path, texts.KEYS)
    [inside] = [each for each in report["contents"] if each["name"] == "forward"]
    split = sum(line["share"] for line in inside["by_line"] if "jax.random.split" in line["source"])
    assert split > 0.3 and inside["by_line"][0]["equal"] >= 8
    what, _ = words.parts(inside)
    assert "jax.random.split" in what and "equal parts" in what


def test_python_that_is_slow_while_a_function_is_traced_has_a_line(tmp_path):
    report = watched(tmp_path, texts.SLOW)
    [traced] = [each for each in report["tracing"] if each["name"] == "step"]
    most = traced["lines"][0]
    assert most["function"] == "read_table"
    [call] = [line for line in traced["lines"] if "x = x + read_table(i)" in line["source"]]
    assert call["with_calls_s"] >= most["seconds"] > call["seconds"]
    # samples stand for no more time than there was
    compiling_s = sum(report["stages"][stage] for stage in ("trace", "lower", "compile"))
    assert sum(line["seconds"] for line in traced["lines"]) <= traced["seconds"] <= compiling_s + 1e-6
    (hint,) = hints_of(report, "tracing step")
    assert "train.py:" in hint


def test_operations_differ_in_what_they_take_also_where_a_library_calls_them(tmp_path):
    report = watched(tmp_path, texts.ALIKE)
    named = [
        (p["name"], p["reason"], p["change"]) for p in sorted(report["list"], key=lambda p: p["start_s"])
    ]
    again = [each for each in named if each[1] not in ("operation outside jit", "first call")]
    assert again == [
        ("broadcast_in_dim", "new shape", "result 0: float32[3] -> float32[4]"),
        ("unstack", "new shape", "operand 0: float32[5,2] -> float32[6,2]"),
        ("neg", "weak type", "operand 0: float32[] -> float32[]{weak_type=True}"),
        ("neg", "new dtype", "operand 0: float32[]{weak_type=True} -> int32[]{weak_type=True}"),
        ("reshape", "other constants", "new_sizes[1]: 2 -> 6"),
    ]
    # one function is traced, and nothing of it is compiled
    [step] = [p for p in report["list"] if not p["compiled"]]
    assert (step["name"], step["reason"], step["line"]) == ("step", "first call", "train.py:19")
    assert row(report, "step")["programs"] == 0 and row(report, "step")["trace_s"] > 0
    assert report["programs"] == len(report["list"]) - 1


def test_programs_from_the_compile_cache_are_counted(tmp_path):
    text = (
        "import jax, jax.numpy as jnp, numpy as np\ntable = np.arange(5, dtype=np.float32)\n"
        "step = jax.jit(lambda x: x + table)\nstep(jnp.float32(1.0))\n"
    )
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    first, second = (watched(tmp_path, text, **cache) for _ in range(2))
    assert first["cache"]["hits"] == 0 and first["cache"]["misses"] == first["programs"]
    assert second["cache"]["hits"] == second["programs"] and second["cache"]["misses"] == 0
