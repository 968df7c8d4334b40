"""Make the page of a section: text and code of its script as it is now, outputs of a run.

Outputs are those of the notebook `NAME.ipynb` of a run, up to the first cell whose code has changed since.
"""

import html
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat import v4
from page_figures import figure, with_formulas

from jaxperf.chapter import catalogue, cells
from jaxperf.chapter.display import ALT
from jaxperf.chapter.notebooks import FIRST, PICTURE
from jaxperf.result import Environment

ROOT = Path(__file__).resolve().parents[1]
DETAILS = re.compile(r"<details>\s*<summary>(.*?)</summary>[ \t]*(.*?)(</details>|$)", re.S)
BORROWED = '<p class="fact">Your run left the answers out; this is from the run that the book keeps:</p>'
# Of a claim: sections and exercises of the book, and those who retold it or wrote about it
SOURCE = re.compile(
    r'(<span class="source">)((?:section |a reader|(?:the PyTorch )?retelling|PyTorch notes)[^<]*)<'
)
COVERAGE = "../coverage.html"  # says where the chapter teaches it
NAMED = 6  # modules that have changed since a run, of which a page gives the names
SPEED = "This is a run at toy size: it shows what the code does, and its times mean nothing."


def sections() -> list[str]:
    """Return the names of the sections, in order, that are scripts of cells."""
    folder = ROOT / "experiments"
    paths = [(s.name, folder / f"{s.name}.py") for s in catalogue.SECTIONS]
    return [name for name, path in paths if path.exists() and "\n# %%" in f"\n{path.read_text('utf-8')}"]


class Run(NamedTuple):
    """The kept run of a section: its code cells, and what `jaxperf.chapter.cells` wrote about it."""

    code: list[Any]
    about: dict[str, Any]

    @classmethod
    def of(cls, notebook: Path) -> "Run | None":
        """Read a notebook; None if it is not there."""
        if not notebook.is_file():
            return None
        document = nbformat.read(notebook, as_version=4)
        return cls(
            [
                cell
                for cell in document.cells
                if cell.cell_type == "code" and FIRST not in cell.metadata.get("tags", ())
            ],
            document.metadata.get("jaxperf", {}),
        )

    def changed_modules(self) -> list[str]:
        """Name the modules of jaxperf that are not what they were in the run."""
        before = self.about.get("modules", {})
        return [name for name, digest in before.items() if cells.digest(source_of(name)) != digest]


def source_of(module: str) -> Path:
    """Return the file of a module of jaxperf."""
    path = ROOT.joinpath(*module.split("."))
    if module == cells.MINI:
        return path / "SHA256SUMS"
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def page(script: Path, run: Run | None, gpu: Run | None = None, kept: Run | None = None) -> Any:
    """Make the page of a section: a notebook whose code cells know their lines, and a part about its run.

    Args:
      script: of the section.
      run: the run whose outputs the page shows.
      gpu: a run on a GPU; a folded part below a cell shows its outputs, where they differ.
      kept: the book's own run; it stands in for a run that is not there, and for answers that `run` left out.
    """
    borrowed = run is None and kept is not None
    run = run or kept
    kept_answers = answers_of(kept) if run is not kept else {}
    on_gpu = {cell.source: cell.outputs for cell in gpu.code} if gpu else {}
    card = card_of(gpu) if gpu else ""
    script_cells = cells.read(script)
    outputs, changed = outputs_of([cell.source for cell in script_cells if not cell.markdown], run)
    made, number = [], 0
    for cell in script_cells:
        if cell.markdown:
            made.append(v4.new_markdown_cell(prose(cell.source, choices(script.stem), first=not made)))
            if len(made) == 1:
                made.extend(v4.new_markdown_cell(text) for text in at_the_top(script, run, borrowed=borrowed))
            continue
        last = cell.line + cell.source.count("\n")
        metadata: dict[str, Any] = {"lines": f"L{cell.line}-L{last}", "tags": list(cell.tags)}
        if cells.ANSWER in cell.tags:
            metadata["tags"].append("hide-cell")
        elif cells.FOLDED in cell.tags:
            prompt = prompt_of(cell.source)
            metadata["mystnb"] = {"code_prompt_show": prompt, "code_prompt_hide": prompt}
        shown = outputs[number] if number < len(outputs) else []
        if cells.ANSWER in cell.tags and not shown and (other := kept_answers.get(cell.source)):
            shown = [v4.new_output("display_data", data={"text/html": BORROWED}), *map(as_html, other)]
        if other := beside(on_gpu.get(cell.source, []), shown, card):
            shown = [*shown, other]
        made.append(v4.new_code_cell(cell.source, metadata=metadata, outputs=shown))
        if number == changed:
            made.append(v4.new_markdown_cell(note(
                "The code of this cell has changed since the run that this page shows. "
                "Outputs from here on are left out.", "changed")))  # fmt: skip
        number += 1
    made.append(v4.new_markdown_cell(about_the_run(script, run, changed=changed is not None, gpu=gpu)))
    language = {"language_info": {"name": "python", "pygments_lexer": "python"}}
    return v4.new_notebook(cells=made, metadata=language)


def outputs_of(code: list[str], run: Run | None) -> tuple[list[list[Any]], int | None]:
    """Return the outputs of the cells up to the first that the run does not have so, and its number."""
    outputs: list[list[Any]] = []
    if run is None:
        return outputs, None
    for number, source in enumerate(code):
        if number == len(run.code) and run.about.get("incomplete"):
            return outputs, None
        if number == len(run.code) or run.code[number].source != source:
            return outputs, number
        outputs.append([as_html(output) for output in run.code[number].outputs])
    return outputs, None if len(run.code) == len(code) else len(code)


def as_html(output: Any) -> Any:
    """Turn a figure into HTML, so that it becomes part of the page."""
    data = output.get("data", {})
    alt = data.pop(ALT, "")
    if svg := data.pop("image/svg+xml", None):
        data["text/html"] = figure(svg, data["text/plain"], "plot", alt)
    elif "<p" in (shown := data.get("text/html", "")):
        linked = SOURCE.sub(rf'\1<a href="{COVERAGE}">\2</a><', shown)
        data["text/html"] = with_formulas(linked)
    return output


def prompt_of(code: str) -> str:
    """Return the words on a folded cell: what its code makes."""
    made = {
        "s.claim(": "verdict",
        "s.figure(": "figure",
        "s.timeline(": "figure",
        "s.table(": "table",
        "s.grid(": "table",
    }
    kinds = dict.fromkeys(kind for call, kind in made.items() if call in code)
    return f"code of the {' and the '.join(kinds)}" if kinds else "code"


def answers_of(run: Run | None) -> dict[str, list[Any]]:
    """Return the outputs of the answers of a run, by their code."""
    if run is None:
        return {}
    answers = [cell for cell in run.code if cells.ANSWER in cell.metadata.get("tags", ())]
    return {cell.source: cell.outputs for cell in answers}


def card_of(run: Run) -> str:
    """Return the name of the GPU of a run."""
    return str(run.about["environment"]["devices"][0].partition(" ")[2])


def beside(outputs: list[Any], shown: list[Any], card: str) -> Any:
    """Return an output that folds what a cell showed on a GPU; None if nothing, or the same as here."""
    parts = [as_markdown(output) for output in outputs]
    if not any(parts) or [text_of(output) for output in outputs] == [text_of(output) for output in shown]:
        return None
    inside = "\n\n".join(part for part in parts if part)
    summary = f"<summary>This cell on one {html.escape(card)}</summary>"
    text = f'<details class="gpu">{summary}\n\n{inside}\n\n</details>'
    return v4.new_output("display_data", data={"text/markdown": text, "text/plain": card})


def text_of(output: Any) -> str:
    """Return what an output says in plain words."""
    return str(output.get("text", "") or output.get("data", {}).get("text/plain", ""))


def as_markdown(output: Any) -> str:
    """Return an output as Markdown, without ids and numbers, which belong to the page's run."""
    data = output.get("data", {})
    if svg := data.get("image/svg+xml"):
        return figure(svg, data["text/plain"], "bare")
    if shown := data.get("text/html"):
        return re.sub(r' (id|href)="[^"]*"', "", with_formulas(shown))
    if table := data.get("text/markdown"):
        unnumbered = table.replace('<details class="evidence">', "<details>", 1)
        return re.sub(r"^\*\*(.*)\*\*$", r"*\1*", unnumbered, count=1, flags=re.M)
    return f"```text\n{output.text.rstrip()}\n```" if output.get("text", "").strip() else ""


def one_line_pictures(text: str) -> str:
    """Put the texts of each picture on one line, since MyST joins lines without a blank."""

    def joined(picture: re.Match[str]) -> str:
        alt, path, caption = picture.groups()
        title = f' "{" ".join(caption.split())}"' if caption else ""
        return f"![{' '.join(alt.split())}]({path}{title})"

    return PICTURE.sub(joined, text)


@cache
def choices(section: str) -> dict[str, list[str]]:
    """Return the choices of a section's predictions, by the question as `question_of` writes it."""
    known = tomllib.loads(Path(__file__).with_name("predictions.toml").read_text(encoding="utf-8"))
    return {question_of(asked): offered for asked, offered in known.get(section, {}).items()}


def question_of(summary: str) -> str:
    """Return the question of a box, without markup and in small letters, so that it can be found."""
    plain = re.sub(r"</?\w+>|`", "", " ".join(summary.split()))
    return plain.lower().removeprefix("predict:").strip()


def prose(text: str, offered: dict[str, list[str]] | None = None, *, first: bool = False) -> str:
    """Make a Markdown cell ready for MyST: question and goals apart, and Markdown within folded answers.

    Args:
      text: the cell.
      offered: the choices of the section's predictions; a prediction without any stays folded.
      first: whether it is the section's first cell.
    """
    if first:
        text = re.sub(r"\s(After\s+this\s+section)", r"\n\n\1", text, count=1)
        text = re.sub(r"\A(# .*)\n+", r"\1\n\n{.question}\n", text)  # the question
    text = one_line_pictures(text)
    return DETAILS.sub(lambda details: folded(details, offered or {}), text)


def folded(details: re.Match[str], offered: dict[str, list[str]]) -> str:
    """Write a folded part so that Markdown works inside it; `class` says whether it asks or answers."""
    summary, text, end = details.groups()
    if end == "</details>" and (answers := offered.get(question_of(summary))):
        return prediction(summary, answers, text)
    title = inline(summary)
    kind = "predict" if summary.lower().startswith("predict") else "answer"
    inside = f"{text.strip()}\n\n" if text.strip() else ""
    return f'<details class="{kind}"><summary>{title}</summary>\n\n{inside}{end}'


def prediction(summary: str, answers: list[str], text: str) -> str:
    """Return a question with choices; the explanation shows once a choice is made, without a script."""
    title = inline(summary)
    name = "p-" + re.sub(r"\W+", "-", question_of(summary))[:40]
    lines = [f'<fieldset class="predict"><legend>{title}</legend>']
    for number, answer in enumerate([*answers, "show me"]):
        decided = any(other.startswith("*") for other in answers) and number < len(answers)
        verdict = "open"
        if decided:
            verdict = "right" if answer.startswith("*") else "wrong"
        field = f'<input type="radio" name="{name}" id="{name}-{number}">'
        lines.append(
            f'{field}<label for="{name}-{number}" class="{verdict}">{inline(answer.lstrip("*"))}</label>'
        )
    lines.append('<div class="explanation">')
    return "\n".join(lines) + f"\n\n{text.strip()}\n\n</div></fieldset>"


def inline(text: str) -> str:
    """Return a line of Markdown as HTML: code and formulas."""
    shown = re.sub("`([^`]+)`", lambda code: f"<code>{code[1]}</code>", " ".join(text.split()))
    return with_formulas(shown)


def note(text: str, kind: str) -> str:
    """Return a remark that stands out."""
    return f":::{{div}} remark {kind}\n{text}\n:::"


def at_the_top(script: Path, run: Run | None, *, borrowed: bool = False) -> Iterator[str]:
    """Yield what a reader must know before the first figure."""
    if run is None:
        yield note("This section has not been run for this page: it shows code without outputs. "
            f"`python experiments/{script.name}` runs it.", "missing")  # fmt: skip
    elif borrowed:
        yield note(f"Your run does not include this section: this is the run that the book keeps. "
            f"`python experiments/{script.name}` runs it.", "missing")  # fmt: skip
    elif "smoke" in run.about.get("options", ()):
        yield note(SPEED, "smoke")


def rerun(script: Path) -> str:
    """Say how to make the page from one's own run."""
    run = f"python experiments/{script.name} --notebook results/{script.stem}.ipynb"
    return f"To make this page from a run of yours:\n\n```sh\n{run}\nmake book RESULTS=results\n```\n"


def about_the_run(script: Path, run: Run | None, *, changed: bool, gpu: Run | None = None) -> str:
    """Return the last part of a page: where its outputs come from, and what has changed since."""
    lines = ["## About this run", ""]
    if run is None:
        lines += ["This section has not been run for this page.", ""]
    else:
        lines += [f"- {remark}" for remark in remarks(run, changed=changed)]
        lines += ["", run_table(settings(run.about)), ""]
    if gpu:
        wanted = ("Command", "Date", "Devices", "Versions", "Code")
        rows = [(name, value) for name, value in settings(gpu.about) if name in wanted]
        lines += [
            f"The folded parts “This cell on one {card_of(gpu)}” are from this run:",
            "",
            run_table(rows),
            "",
        ]
    download = (
        f'Take this section with you: <a href="{script.name}" download>the script</a>, or '
        f'<a href="{script.stem}.ipynb" download>a notebook without outputs</a>.'
    )
    return "\n".join([*lines, rerun(script), download])


def run_table(rows: list[tuple[str, str]]) -> str:
    """Return the settings of a run as a table of HTML."""
    shown = (f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
    return f'<table class="run">{"".join(shown)}</table>'


def remarks(run: Run, *, changed: bool) -> Iterator[str]:
    """Yield what makes the run another one than the reader would get today."""
    options, modules = run.about.get("options", ()), run.changed_modules()
    if "smoke" in options:
        yield SPEED
    if changed:
        yield "**The code of this page has changed since this run**, so some outputs are left out."
    if modules:
        names = [f"`{name}`" for name in modules[:NAMED]]
        if len(modules) > NAMED:
            names.append(f"and {len(modules) - NAMED} more")
        yield f"**Modules have changed since this run**, so a new run may differ: {', '.join(names)}."
    if busy := run.about.get("busy"):
        yield f"**The machine was busy**: {busy} meanwhile, so times are noisy."
    if run.about.get("incomplete"):
        yield "**The run was stopped** before its last cell."
    if any(output.output_type == "error" for cell in run.code for output in cell.outputs):
        yield "**A cell failed** in this run; its error is shown below it."
    if run.about.get("environment", {}).get("commit", "").endswith("+dirty"):
        yield "**The code was not that of a commit**: files had been changed."
    if run.about.get("turned"):
        yield "**All verdicts are turned around**, to read the other sentences; none of them is true."
    if "answers" not in options:
        yield "The answers to the exercises were not run; `--answers` runs them, too."


def settings(about: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what it takes to repeat a run, as rows of HTML."""
    known = {
        name: value for name, value in about.get("environment", {}).items() if name in vars(Environment())
    }
    e = Environment(**known)
    size = f"{e.memory_bytes / 1e9:.0f} GB" if e.memory_bytes else ""
    cores = f"{e.cores} cores" if e.cores else ""
    devices = f"{len(e.devices)} × {e.backend}" if e.devices else ""
    if e.devices_are_fake:
        devices += ": parts of one CPU, which share its cores"
    if e.gpus:
        devices += f" ({'; '.join(e.gpus)})"
    versions = {"Python": e.python, **e.versions}
    flags = [f"{name}={value}" for name, value in e.flags.items() if not name.startswith("jax_")]
    others = e.accelerated or tuple({"oneDNN convolutions" for flag in flags if "onednn" in flag.lower()})
    took = f", in {about['wall_s']:,.0f} s" if about.get("wall_s") else ""
    rows = {
        "Command": code(about.get("command", "")),
        "Parameters": code(*(f"{name}={value}" for name, value in about.get("config", {}).items())),
        "Date": about.get("started_at", "")[:10] + took,
        "Machine": html.escape(", ".join(filter(None, (e.cpu, cores, size)))),
        "Devices": html.escape(devices),
        "System": html.escape(e.platform),
        "Versions": html.escape(
            ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        ),
        "Settings": code(*flags),
        "Beside JAX": html.escape(", ".join(others)) or "nothing: JAX as installed",
        "Images": html.escape(images(e.data_source)),
        "Code": html.escape(f"commit {e.commit}" if e.commit else ""),
    }
    return [(name, value) for name, value in rows.items() if value]


def images(source: str) -> str:
    """Say where the images came from."""
    if source == "mini":
        return "the 6,000 + 1,000 images of Fashion-MNIST in this package"
    return f"Fashion-MNIST, {source}" if source else ""


def code(*items: str) -> str:
    """Mark items as code in HTML, so that a line breaks between them only."""
    return ", ".join(f"<code>{html.escape(item)}</code>" for item in items if item)


def list_of_sections() -> str:
    """Return the chapter's contents for the start page: a table of contents, and a line for each section."""
    known = {section.name: section for section in catalogue.SECTIONS}
    names = sections()
    toctree = [
        "```{toctree}",
        ":hidden:",
        ":caption: The chapter",
        "",
        *(f"experiments/{name}" for name in names),
        "```",
        "",
    ]
    titles = {
        name: cells.read(ROOT / "experiments" / f"{name}.py")[0].source.split("\n")[0] for name in names
    }
    entries = [
        f"[{titles[name].lstrip('# ')}](../experiments/{name}.py)\n: {known[name].question}\n"
        for name in names
    ]
    return "\n".join([*toctree, "{.sections}", *entries])
