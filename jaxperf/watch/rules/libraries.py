"""What advice says in the words of the libraries that JAX programs are written with."""

import re
import sys
from typing import NamedTuple

from jaxperf.watch.source import statements


class Words(NamedTuple):
    """How a library of modules says what JAX alone says in other words."""

    jit: str = "jax.jit"  # the transformation that jits a function of its modules
    makes: str = ""  # how a module {name} is made by one program; "" if it has another way
    steps: str = ""  # what a scan over steps needs besides, as a phrase in parentheses


MODULES = {
    "flax.nnx": Words(
        jit="nnx.jit",
        makes="Make it by one program: nnx.jit(lambda: {name}(...))() with the arguments of this call.",
        steps=" (nnx.split the modules before it, and nnx.merge them in its body)",
    ),
    "equinox": Words(
        jit="eqx.filter_jit",
        makes="Make it by one program: eqx.filter_jit({name})(...) with the arguments of this call.",
        steps=" (over the arrays of eqx.partition(model, eqx.is_array), with eqx.combine in its body)",
    ),
}
_INSIDE = "Call {name} inside a function under %s, made once, whose arguments are the arrays that vary."
# what makes one program of a call of {name}, a method of {owner}, by library and a pattern of the called name
CALLS = (
    ("flax", r"Optimizer$", "Make it inside a function under nnx.jit that returns it, with the model."),
    (
        "numpyro", r"mcmc\.run$|sampler\.run$",
        "Make one program of it: give MCMC progress_bar=False, and call samples = jax.jit(lambda key: "
        "({name}(key, ...), {owner}.get_samples())[1])(key), with the other arguments of this call. {owner} "
        "holds no samples then: numpyro.diagnostics.print_summary(samples, group_by_chain=False) prints "
        "them. "
        "The model may not print.",
    ),
    ("numpyro", r"\.(init|update|stable_update|evaluate)$", "Make jax.jit({name}) once, and call that here."),
    ("numpyro", r"^[a-z]", _INSIDE % "jax.jit"),
    (
        "keras", r"\.(fit|evaluate|predict)$",
        "Give {owner}.compile the option jit_compile=True (leave run_eagerly off), and "
        "steps_per_execution=32, which makes one call of many steps.",
    ),
    (
        "optax", r"update$|^apply",
        "Put the gradient, {name} and what else the step does into one function under jax.jit: one program.",
    ),
    ("optax", r"\.init$", "Make jax.jit({name}) once, and call that here."),
    ("optax", r".", _INSIDE % "jax.jit"),
    ("diffrax", r".", _INSIDE % "eqx.filter_jit"),
    ("optimistix", r".", _INSIDE % "eqx.filter_jit"),
    ("lineax", r".", _INSIDE % "eqx.filter_jit"),
    ("blackjax", r".", f"{_INSIDE % 'jax.jit'} In a loop, that is the body of jax.lax.scan."),
)  # fmt: skip


_NUMPYS = {"np": "numpy", "jnp": "jax.numpy"}


def in_names_of(file: str, change: str) -> str:
    """Return a change with a file's own names of NumPy and of jax.numpy; the full ones if it has none."""
    imports = statements.imports(file)
    names = {meaning: name for name, meaning in sorted(imports)}

    def own_name(match: re.Match[str]) -> str:
        module = _NUMPYS[match[1]]
        usual = (match[1], module) in imports or not imports
        return match[0] if usual else f"{names.get(module, module)}."

    renamed = re.sub(r"\b(j?np)\.(?=\w)", own_name, change)
    needed = "numpy." in renamed.replace("jax.numpy.", "") and change != renamed
    return f"{renamed} It needs import numpy." if needed and "numpy" not in names else renamed


def library_of_file(file: str) -> Words:
    """Return the words of Flax NNX or Equinox, if a file imports it; else those of JAX."""
    return next((words for name, words in MODULES.items() if statements.imports_module(file, name)), Words())


def is_tree(file: str, called: str) -> bool:
    """Return whether a file calls a class of Equinox's modules, which are trees of arrays to JAX."""
    root, _, rest = called.partition(".")
    module, _, name = f"{dict(statements.imports(file)).get(root, root)}.{rest}".strip(".").rpartition(".")
    made = getattr(getattr(sys.modules.get(module), name, None), "__mro__", ())
    return any(base.__module__.partition(".")[0] == "equinox" for base in made)


def change_of_call(library: str, called: str) -> str:
    """Return how a call of a library becomes one program; "" if the table does not say."""
    changes = (change for name, pattern, change in CALLS if name == library and re.search(pattern, called))
    return next(changes, "").format(name=called, owner=called.rpartition(".")[0])
