from pathlib import Path

import children

ROOT = Path(__file__).parents[2]


def test_the_layers_of_the_package_hold():
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = children.run("-c", program, folder=ROOT)
    assert done.returncode == 0, done.stdout


def test_what_must_answer_at_once_imports_no_jax_and_jaxperf_only_the_standard_library():
    program = """
import sys; before = set(sys.modules); import jaxperf
print({n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))
import jaxperf.result
print({n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))
import jaxperf.cli, jaxperf.result.recorder, jaxperf.result.terminal, jaxperf.watch
print({'jax', 'flax', 'numpy', 'tensorflow', 'scipy', 'matplotlib'} & set(sys.modules))
import jaxperf.data
print({'jax', 'urllib.request', 'tensorflow', 'tensorflow_datasets'} & set(sys.modules))
"""
    done = children.run("-c", program, folder=ROOT)
    assert (done.stdout, done.stderr) == ("{'jaxperf'}\n{'jaxperf'}\nset()\nset()\n", "")
