"""Whether oneDNN's convolutions work on this CPU: tried in a separate process before any other uses them.

jaxlib contains oneDNN, but does not use it unless it is told to. From jaxlib 0.12 on, a switch in XLA_FLAGS,
which XLA reads when JAX starts, turns it on. Before that, `jaxperf.onednn.convolution` calls the kernels by
name. A variable says that this was tried, and asks for the lowering rule in that module. The trial runs in a
separate process, since XLA aborts at an unknown flag and the names are private. JAX 0.12.0.1, one device's
training step on 2 cores, with the switch over without it in three turns: LeNet, batch 256, 1.8, 1.7 and 1.5
times the images/s; ResNet-18, batch 32, 1.8, 1.8 and 1.9.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping

from jaxperf.errors import to_one_line
from jaxperf.result import machine

SWITCH = (
    "--xla_cpu_use_onednn=true",
    "--xla_cpu_experimental_onednn_custom_call=true",
    # XLA's default library would take a single convolution before oneDNN can
    "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution",
)
FIRST = (0, 12)  # jaxlib 0.10.2 knows the switch, but then computes convolutions in its slowest way
BY_NAME = "_JAXPERF_ONEDNN"  # "1" where the trial has succeeded: internal, from one process to the next
LIMIT_S = 120
CACHE = "JAX_COMPILATION_CACHE_DIR"
CHILD = "from jaxperf.onednn.trial import answer; answer()"


def with_onednn(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process to be started, in which oneDNN is used if that works.

    The first call runs the trial: see `answer`. The user's settings for oneDNN or YNNPACK stay.
    """
    return dict(environment) if refusal(environment) else {**environment, **variables(environment)}


def refusal(environment: Mapping[str, str]) -> str:
    """Return in one line why `with_onednn` changes nothing, or "" if oneDNN works."""
    return obstacle(environment) or _failure(tuple(variables(environment).items()))


def obstacle(environment: Mapping[str, str]) -> str:
    """Return in one line what keeps oneDNN off without a trial, or ""."""
    if _jaxlib() is None:
        return f"it needs a jaxlib for x86 processors, and this one is {platform.machine()}"
    if re.search("onednn|ynn", environment.get("XLA_FLAGS", "")):
        return "XLA_FLAGS already sets flags for oneDNN or YNNPACK, and these stay"
    if environment.get(CACHE):  # jaxlib 0.10 and 0.12: std::bad_alloc
        return f"{CACHE} is set, and jaxlib cannot store programs that call oneDNN"
    return ""


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which oneDNN is used; the user's XLA_FLAGS stay in front."""
    flags = environment.get("XLA_FLAGS")
    if has_switch():
        flags = " ".join(filter(None, (flags, *SWITCH)))
    return {BY_NAME: "1"} if flags is None else {"XLA_FLAGS": flags, BY_NAME: "1"}


def without_onednn(flags: str) -> str:
    """Return XLA_FLAGS as they were before `with_onednn`."""
    return " ".join(word for word in flags.split(" ") if word not in SWITCH)


def begin() -> None:
    """Apply in this process what `with_onednn` requested, before anything is compiled."""
    if requested():
        from jaxperf.onednn.convolution import use_onednn

        use_onednn()


def requested() -> bool:
    """Return whether this process's environment asks for oneDNN, in the way that this jaxlib has it.

    Another jaxlib may have written the environment: private names are for those without the switch only.
    """
    switch = set(SWITCH) <= set(os.environ.get("XLA_FLAGS", "").split())
    return os.environ.get(BY_NAME) == "1" and _jaxlib() is not None and has_switch() == switch


def has_switch() -> bool:
    """Return whether this jaxlib is for x86 processors and has XLA's switch."""
    return (_jaxlib() or (0,)) >= FIRST


def _jaxlib() -> tuple[int, ...] | None:
    """Return the version of jaxlib on an x86 processor, or None."""
    version = re.match(r"(\d+)\.(\d+)", machine.versions(("jaxlib",)).get("jaxlib", ""))
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return tuple(map(int, version.groups())) if x86 and version else None


@functools.cache
def _failure(variables: tuple[tuple[str, str], ...]) -> str:
    """Return in one line why `answer` fails in a process with these variables, or "" if it succeeds."""
    environment = {**os.environ, "XLA_FLAGS": "", **dict(variables), "JAX_PLATFORMS": "cpu"}
    try:
        command = [sys.executable, "-P", "-c", CHILD]  # -P: no file of the current folder shadows a package
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
        )
    except OSError as e:
        return f"the trial in a separate process does not start: {e.strerror or e}"
    except subprocess.TimeoutExpired:
        return f"the trial in a separate process takes more than {LIMIT_S} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    reason = to_one_line(lines[-1].strip()) if lines else f"status {done.returncode}"
    return f"the trial in a separate process failed: {reason}"


def answer() -> None:
    """Compare a convolution and both gradients with NumPy's, and check that oneDNN computes them.

    Runs in the process that the trial starts.

    Raises:
      RuntimeError: they differ, or XLA computes them by itself.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    begin()
    rng = np.random.default_rng(0)
    x, w, g = (rng.normal(size=s).astype("f") for s in ((8, 14, 14, 16), (3, 3, 16, 32), (8, 12, 12, 32)))
    taps = [(i, j, x[:, i : i + 12, j : j + 12]) for i in range(3) for j in range(3)]

    def conv(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def all_of_it(x: jax.Array, w: jax.Array, g: jax.Array) -> tuple[jax.Array, ...]:
        y, back = jax.vjp(conv, x, w)
        few, many = (x[..., :2], w[:, :, :2], g), (jnp.tile(x, 8), jnp.tile(w, (8, 4)), jnp.tile(g, 4))
        return y, *back(g), *(jax.vjp(conv, x, w)[1](g)[1] for x, w, g in (few, many))

    compiled = jax.jit(all_of_it).lower(x, w, g).compile()
    expected_dw = np.stack([np.einsum("nhwi,nhwo->io", a, g) for *_, a in taps]).reshape(w.shape)
    expected_dx = np.zeros_like(x)
    for i, j, _ in taps:
        expected_dx[:, i : i + 12, j : j + 12] += g @ w[i, j].T
    # few channels have one product, many one for each row of the kernel
    gradients = expected_dx, expected_dw, expected_dw[:, :, :2], np.tile(expected_dw, (8, 4))
    for result, expected in zip(compiled(x, w, g), (sum(a @ w[i, j] for i, j, a in taps), *gradients)):
        if not np.allclose(result, expected, rtol=1e-4, atol=1e-3):
            raise RuntimeError("what oneDNN computes differs from NumPy's results")
    program = compiled.as_text() or ""
    convolutions, products = (program.count(f'"__onednn${name}"') for name in ("convolution", "matmul"))
    if not convolutions or (products < 7 and not has_switch()):  # XLA gives some products to YNNPACK
        raise RuntimeError(f"oneDNN computes only {convolutions} convolutions and {products} products")
