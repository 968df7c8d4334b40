import subprocess
from pathlib import Path

import children
import jax
import numpy as np
import pytest

from jaxperf import libraries
from jaxperf.errors import JaxperfError
from jaxperf.libraries import library_of
from jaxperf.process import child_environment


def test_installed_code_is_a_librarys_but_while_it_is_watched(tmp_path):
    modules = {"jax": jax, "numpy": np, "subprocess": subprocess, "jaxperf": libraries}
    assert [library_of(module.__file__) for module in modules.values()] == [*modules]
    assert library_of("<frozen importlib._bootstrap>", "importlib._bootstrap") == "importlib"
    assert library_of("<timeit-src>") == library_of("<attrs generated init study.Mesh>") == "python"
    assert library_of(str(tmp_path / "train.py")) == library_of("<ipython-input-1>") == ""
    root = str(Path(np.__file__).parent)
    with libraries.user_code([root]):
        assert library_of(np.__file__) == ""
    assert library_of(np.__file__) == "numpy"


def test_jax_outside_site_packages_is_a_library_too(tmp_path):
    """As with PYTHONPATH, `pip --target` or a checkout; a file beside it is the user's."""
    (tmp_path / "jax").symlink_to(Path(jax.__file__).parent)
    (tmp_path / "flax").mkdir()
    (tmp_path / "flax" / "__init__.py").write_text("")
    program = (
        "import sys, flax, jax, jax._src.monitoring as m; from jaxperf.libraries import library_of\n"
        "folder = sys.argv[1]; assert m.__file__.startswith(folder)\n"
        "print(library_of(m.__file__), library_of(flax.__file__), repr(library_of(f'{folder}/jax_model.py')))"
    )
    path = child_environment({"PYTHONPATH": str(tmp_path)})["PYTHONPATH"]
    done = children.run("-c", program, tmp_path, PYTHONPATH=":".join(reversed(path.split(":"))))
    assert (done.stdout, done.stderr) == ("jax flax ''\n", "")


def test_a_missing_extra_is_named_in_one_line(monkeypatch):
    libraries.require_chapter("`jaxperf run`")
    monkeypatch.setattr(libraries, "CHAPTER", ("flax", "no_such.module", "nor_this"))
    with pytest.raises(JaxperfError) as caught:
        libraries.require_chapter("`jaxperf run`")
    assert str(caught.value).startswith("`jaxperf run` needs no_such.module, nor_this; install the extra: ")
    with pytest.raises(ModuleNotFoundError) as missing, libraries.from_chapter():
        import nor_this  # noqa: F401
    assert str(missing.value).startswith("nor_this is not installed; install the extra: ")
