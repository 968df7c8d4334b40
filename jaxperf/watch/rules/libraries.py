"""What advice says in the words of the libraries that JAX programs are written with."""

import re
from dataclasses import dataclass

from jaxperf.watch.source import statements


@dataclass(frozen=True)
class Library:
    """How a library says what JAX alone says in other words."""

    jit: str = "jax.jit"  # the transformation that jits a function of its modules
    makes: str = ""  # how a module {name} is made by one program; "" if it has another way
    steps: str = ""  # what a scan over steps needs besides, as a phrase in parentheses
    # by a pattern of the called name, what makes one program of a call of {name}, a method of {owner}
    calls: tuple[tuple[str, str], ...] = ()


_INSIDE = "Call {name} inside a function under %s, made once, whose arguments are the arrays that vary."
LIBRARIES = {
    "flax.nnx": Library(
        jit="nnx.jit",
        makes="Make it by one program: nnx.jit(lambda: {name}(...))() with the arguments of this call.",
        steps=" (nnx.split the modules before it, and nnx.merge them in its body)",
        calls=((r"Optimizer$", "Make it inside a function under nnx.jit that returns it, with the model."),),
    ),
    "equinox": Library(
        jit="eqx.filter_jit",
        makes="Make it by one program: eqx.filter_jit({name})(...) with the arguments of this call.",
        steps=" (over the arrays of eqx.partition(model, eqx.is_array), with eqx.combine in its body)",
    ),
    "numpyro": Library(
        calls=(
            (
                r"mcmc\.run$|sampler\.run$",
                "Make one program of it: give MCMC progress_bar=False, and call jax.jit(lambda key: "
                "({name}(key, ...), {owner}.get_samples())[1])(key), with the other arguments of this call. "
                "The model may not print.",
            ),
            (r"\.(init|update|stable_update|evaluate)$", "Make jax.jit({name}) once, and call that here."),
            (r"^[a-z]", _INSIDE % "jax.jit"),
        ),
    ),
    "keras": Library(
        calls=(
            (
                r"\.(fit|evaluate|predict)$",
                "Give {owner}.compile the option jit_compile=True (leave run_eagerly off), and "
                "steps_per_execution=32, which makes one call of many steps.",
            ),
        ),
    ),
    "optax": Library(
        calls=((r".", "Move {name} into the jitted step, behind the gradient: it then costs no program."),),
    ),
    **dict.fromkeys(
        ("diffrax", "optimistix", "lineax"), Library(calls=((r".", _INSIDE % "eqx.filter_jit"),))
    ),
    "blackjax": Library(
        calls=((r".", "Make jax.jit({name}) once, or call it in the body of jax.lax.scan under jax.jit."),),
    ),
}  # fmt: skip
_NONE = Library()


def library_of_file(file: str) -> Library:
    """Return the library of modules that a file imports, Flax NNX or Equinox; else one that says jax.jit."""
    makers = ((name, words) for name, words in LIBRARIES.items() if words.makes)
    return next((words for name, words in makers if statements.imports_module(file, name)), _NONE)


def change_of_call(library: str, called: str) -> str:
    """Return how a call of a library becomes one program; "" if the table does not say."""
    words = LIBRARIES.get("flax.nnx" if library == "flax" else library, _NONE)
    for pattern, change in words.calls:
        if re.search(pattern, called):
            return change.format(name=called, owner=called.rpartition(".")[0])
    return ""
