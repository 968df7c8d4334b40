import chromium
import pytest
from test_compile_report import SETUP, STEP, described, function, operation

from jaxperf.watch.compiling import output
from jaxperf.watch.log import Stack
from jaxperf.watch.observe.source_location import Place

pytestmark = pytest.mark.real
MEASURE = """<script>
addEventListener("load", () => {
  const table = document.querySelector("table");
  const read = () => [...table.tBodies[0].rows].map(row => row.cells[3].textContent);
  const before = read();
  [...table.querySelectorAll("th button")].find(button => button.textContent === "programs").click();
  const sorted = read(), main = document.querySelector("main");
  parent.postMessage(JSON.stringify({
    width: innerWidth, page: document.documentElement.scrollWidth - innerWidth, before, sorted,
    text: document.body.innerText, hidden: [...table.tBodies[0].rows].filter(row => row.hidden).length,
    heads: [...main.querySelectorAll("h2")].map(head => head.textContent),
    ink: getComputedStyle(document.body).color,
  }), "*");
});
</script>"""


@pytest.fixture(scope="module")
def report():
    long = Place("/p/" + "a_rather_long_name_of_a_module_" * 3 + ".py", 12345, "build_everything")
    programs = [function(0, 30, 1, 4), *(operation(40 + i / 10, 0.1, f"op{i}") for i in range(80))]
    programs += [operation(60 + i, 0.5, f"op{i}", Place(f"/p/part{i}.py", i, f"part_{i}")) for i in range(60)]
    programs += [operation(99, 0.3, "mul", long)]
    samples = tuple(Stack(i, i + 1, (SETUP, STEP)) for i in range(30))
    return described(*programs, wall_s=130.0, samples=samples)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_and_sorts(report, width, tmp_path):
    page = output.render("compile report: train.py", report["summary"], [report])
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", MEASURE + "</body>"))
    seen = chromium.measured(file, width, tmp_path)
    assert seen["width"] == width and seen["page"] <= 0
    assert report["summary"] in " ".join(seen["text"].split())
    assert seen["heads"] == [
        "What to look at", "By function", "By line", "Where Python spends the time of tracing",
        "Programs one by one",
    ]  # fmt: skip
    counts = [int(n) for n in seen["sorted"]]
    assert counts == sorted(counts, reverse=True) and [int(n) for n in seen["before"]] != counts
    assert counts[0] == 80 and seen["hidden"] == 0
    # cells with words, of functions, lines and reasons
    for cell in ("setup", "p/train.py:7", "operation outside jit (80)", "first call", "train.py:40"):
        assert cell in seen["text"], cell
