"""A result as a Jupyter notebook: the section's text, the script that ran as code cells, and their outputs.

What a cell tells before its first outcome (headings, text, code from other files) is a text cell above it;
everything after that is the cell's output. `live` shows the same in a running notebook.
"""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxperf.report import draw, terminal
from jaxperf.report.figures import Picture
from jaxperf.report.markdown import escape, markdown, opening, strong, summary
from jaxperf.report.script_parts import Script, Step, take_apart
from jaxperf.report.story import Item, walk
from jaxperf.result import Code, Habit, Heading, Result, Text
from jaxperf.result.store import write_whole

TEXT = Heading | Text | Habit | Code
Bundle = dict[str, Any]  # one thing to show, by MIME type
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def write_notebooks(results: Mapping[Path, Result]) -> list[Path]:
    """Write a notebook next to each result's file and return their paths.

    Raises:
      JaxperfError: one cannot be written.
    """
    peers = [r for r in results.values() if r.experiment == "peers"]
    written = []
    for path, result in results.items():
        written.append(path.with_suffix(".ipynb"))
        write_whole(written[-1], render_notebook(result, peers=peers))
    return written


def render_notebook(result: Result, *, peers: Sequence[Result] = ()) -> str:
    """A result as a notebook's JSON, with the outputs of its run; without a script, only text and outputs.

    Args:
      result: what to show.
      peers: results that hold other systems' measurements of its workloads.
    """
    import nbformat  # takes a fifth of a second, which a run saves

    v4 = nbformat.v4
    items = list(walk(result, peers=peers))
    script = take_apart(result.script, result.config)
    cells = [v4.new_markdown_cell("\n".join(_title(result, script)))]
    if script:
        items = [i for i in items if not (isinstance(i, Code) and i.source.strip() in result.script)]
        cells += [v4.new_code_cell(code) for code in (_setup(result, script), script.imports) if code]
    for step, told in _by_step(items, script.steps) if script else _by_heading(items):
        above, outcomes = _split(told)
        if above:
            cells.append(v4.new_markdown_cell("\n".join(above).rstrip()))
        cells += [v4.new_code_cell(code) for code in (step.definitions if step else ())]
        outputs = _outputs(v4, outcomes)
        if step or outputs:
            cells.append(v4.new_code_cell(step.source if step else "# the stored output", outputs=outputs))
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"  # nbformat's are random, and the same result makes the same file
    return str(nbformat.writes(v4.new_notebook(cells=cells, metadata=METADATA))) + "\n"


def _title(result: Result, script: Script | None) -> list[str]:
    how = (
        "Run the cells in order (*Run*, *Restart Kernel and Run All Cells*); the kernel needs only jaxperf. "
        "The first code cell comes before JAX is imported, since it sets how many devices there are. "
        "Until you run them, the outputs are those of this machine:"
        if script
        else "This result holds no script, so here are its text and its outputs only, from this machine:"
    )
    return [*opening(result, "#"), "", how, "", *summary([result])]


def _setup(result: Result, script: Script) -> str:
    """The cell that runs before JAX is imported: the settings of the run, and the story that they begin."""
    devices = result.config.get("devices", 1)
    options = f", devices={devices!r}" + (", smoke=True" if result.smoke else "")
    if result.environment.flags.get("JAX_PLATFORMS") == "cpu":
        options += ', platform="cpu"'
    return (
        f"{script.setup}\n\n{script.config} = {script.settings}\n"
        f"{script.story} = script.notebook({result.experiment!r}, {script.config}{options})"
    )


def _by_step(items: Sequence[Item], steps: Sequence[Step]) -> list[tuple[Step, list[Item]]]:
    """The items that each step tells: a heading says of which part it is, and what follows belongs to it."""
    told: list[list[Item]] = [[] for _ in steps]
    parts = [item.part for item in items if isinstance(item, Heading)]
    tells = {part: i for part in parts for i, step in reversed(list(enumerate(steps))) if part in step.names}
    at = max(0, tells.get(parts[0], 0) - 1) if parts else 0  # what comes before all parts
    for item in items:
        if isinstance(item, Heading):
            at = tells.get(item.part, at)
        told[at].append(item)
    return list(zip(steps, told))


def _by_heading(items: Iterable[Item]) -> list[tuple[None, list[Item]]]:
    """Items in groups that begin with a heading."""
    groups: list[list[Item]] = [[]]
    for item in items:
        if isinstance(item, Heading):
            groups.append([])
        groups[-1].append(item)
    return [(None, group) for group in groups]


def _split(told: Sequence[Item]) -> tuple[list[str], Sequence[Item]]:
    """The text above the code as Markdown, and the rest."""
    above = list(itertools.takewhile(lambda item: isinstance(item, TEXT), told))
    return [line for item in above for line in markdown(item, level="##")], told[len(above) :]


def _bundles(items: Iterable[Item]) -> Iterator[Bundle]:
    """What items show: pictures and text in Jupyter's form, the rest as a run prints it."""
    for item in items:
        if isinstance(item, Picture):
            words = " ".join(filter(None, [strong(item.title), escape(item.caption)]))
            yield {"text/markdown": words, "text/plain": words}
            described = escape(f"{item.title}: {item.description}")
            try:
                image = base64.b64encode(draw.png(item.draw, height_in=item.height_in)).decode()
            except ValueError:  # values that do not fit on an axis
                yield {"text/markdown": described, "text/plain": described}
            else:
                yield {"image/png": image, "text/plain": described}
        elif isinstance(item, TEXT):
            words = "\n".join(markdown(item, level="##"))
            yield {"text/markdown": words, "text/plain": words}
        else:
            yield {"stream": _printed(item)}


def _printed(item: Item) -> str:
    """An item as the log of a run prints it."""
    out = io.StringIO()
    plain = {"no_color": True, "highlight": False, "force_terminal": False, "force_jupyter": False}
    terminal.show(Console(file=out, width=100, **plain), item, verbose=True)  # type: ignore[arg-type]
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _outputs(v4: Any, items: Iterable[Item]) -> list[Any]:
    """What items show as a cell's outputs; consecutive printed items form one output."""
    found: list[Any] = []
    for bundle in _bundles(items):
        if "stream" not in bundle:
            found.append(v4.new_output("display_data", data=bundle))
        elif found and found[-1].output_type == "stream":
            found[-1].text += bundle["stream"]
        else:
            found.append(v4.new_output("stream", name="stdout", text=bundle["stream"]))
    return found


def live() -> Callable[..., None]:
    """How a story shows its items in a running notebook: all but the text that is in the cell above."""
    cell, above = 0, True

    def show(console: Console, item: Item, *, verbose: bool) -> None:
        from IPython import get_ipython  # a running notebook has it
        from IPython.display import display

        nonlocal cell, above
        shell = get_ipython()
        above = isinstance(item, TEXT) and (above or shell.execution_count != cell)
        cell = shell.execution_count
        code = item.source.strip() if isinstance(item, Code) else None
        if above or (code and any(code in source for source in shell.user_ns["In"])):
            return
        for bundle in _bundles([item]):
            if "stream" in bundle:
                print(bundle["stream"], end="")
            else:
                display(bundle, raw=True)

    return show
