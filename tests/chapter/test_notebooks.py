import base64
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import nbformat
import pytest

from jaxperf.chapter import catalogue, cells, notebooks

ROOT = notebooks.ROOT
KEPT = ROOT / "benchmarks" / "results" / "book"
NAMES = [section.name for section in catalogue.SECTIONS]
ADDRESS = "https://github.com/somebody/jaxperf"


def made(name, target, address=""):
    script = catalogue.folder() / f"{name}.py"
    nodes = [cell.node() for cell in cells.read(script)]
    return notebooks.finish(nodes, script, notebooks.resolve_in_checkout(target, address), address)


def lost(notebook, folder):
    missing = []
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        text = notebooks.FENCE.sub("", cell.source)
        for _, target, _ in notebooks.PICTURE.findall(text):
            name = target.removeprefix("attachment:")
            if name == target or name not in cell.get("attachments", {}):
                missing.append(target)
        for _, target in notebooks.LINK.findall(text):
            path = target.partition("#")[0]
            known = {f"{section}.ipynb" for section in NAMES}
            if path and not re.match(r"https?:", path) and path not in known and not (folder / path).exists():
                missing.append(target)
    return missing


@pytest.mark.parametrize("name", NAMES)
def test_pictures_and_links_of_a_section_lead_somewhere_from_its_notebook(name, tmp_path):
    notebook = made(name, KEPT / f"{name}.ipynb")
    nbformat.validate(notebook)
    assert lost(notebook, KEPT) == []
    elsewhere = made(name, tmp_path / f"{name}.ipynb", ADDRESS)  # outside of a checkout
    assert lost(elsewhere, tmp_path) == []
    links = "".join(cell.source for cell in elsewhere.cells if cell.cell_type == "markdown")
    kept = f"blob/main/benchmarks/results/book/{name}.ipynb"
    assert f"colab.research.google.com/github/somebody/jaxperf/{kept}" in links
    for cell in notebook.cells:
        for form in cell.get("attachments", {}).values():
            ET.fromstring(base64.b64decode(form["image/svg+xml"]))


@pytest.mark.parametrize("name", NAMES)
def test_the_kept_notebooks_show_their_drawings_and_name_a_kernel(name):
    notebook = nbformat.read(KEPT / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert lost(notebook, KEPT) == []
    assert notebook.metadata.kernelspec.name == "python3" and notebook.metadata.language_info.name == "python"
    assert notebooks.FIRST in notebook.cells[1].metadata.tags


@pytest.mark.real
@pytest.mark.thorough
def test_a_notebook_installs_what_it_needs_in_an_empty_environment(tmp_path):
    pytest.importorskip("hatchling")
    code = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    python = tmp_path / "empty" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "nbclient", "ipykernel"], check=True)
    notebook = made("use_gpu", tmp_path / "use_gpu.ipynb")
    notebook.cells = [cell for cell in notebook.cells if cells.ANSWER not in cell.metadata.get("tags", ())]
    nbformat.write(notebook, tmp_path / "use_gpu.ipynb")
    run = (
        "import nbclient, nbformat; n = nbformat.read('use_gpu.ipynb', 4);"
        "n.cells.append(nbformat.v4.new_code_cell('import jax; print(len(jax.devices()), jax.__file__)'));"
        "nbclient.NotebookClient(n, startup_timeout=600).execute(); print(n.cells[-1].outputs[0].text)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "PYTHON", "XLA"))}
    environment |= {"PIP_FIND_LINKS": str(tmp_path), "PIP_PRE": "0"}
    done = subprocess.run(
        [str(python), "-c", run], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    count, path = done.stdout.split()
    assert count == "8" and Path(path).is_relative_to(tmp_path / "empty")
