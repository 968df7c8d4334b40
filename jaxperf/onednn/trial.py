"""oneDNN's convolutions on a CPU: jaxlib contains them, but does not use them unless it is told to.

From jaxlib 0.12 on, a switch in XLA_FLAGS, which XLA reads when JAX starts, turns them on. A variable asks
for what no switch does (`models.convolution`): before that version all calls of the kernels by name, and
from then on those that compute convolutions and gradients as products. All of this applies only to
processes that start later, and only after a probe in a separate process: XLA aborts at an unknown flag, and
the names are private. JAX 0.12.0.1, one device's training step on 2 cores, with the switch over without it
in three turns: LeNet, batch 256, 1.8, 1.7 and 1.5 times the images/s; ResNet-18, batch 32, 1.8, 1.8 and 1.9.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping

from jaxperf.result import machine

SWITCH = (
    "--xla_cpu_use_onednn=true",
    "--xla_cpu_experimental_onednn_custom_call=true",
    # XLA's default library would take a single convolution before oneDNN can
    "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution",
)
FIRST = (0, 12)  # jaxlib 0.10.2 knows the switch, but then computes convolutions in its slowest way
BY_NAME = "JAXPERF_ONEDNN"  # "1" asks a section to call kernels by name, anything else not to
CHILD = "from jaxperf.onednn.trial import answer; answer()"


def with_onednn(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process to be started, in which oneDNN is used if that works.

    It does not work on processors other than x86, or with a compile cache: jaxlib 0.10 and 0.12 cannot
    serialize a program that calls oneDNN (std::bad_alloc). The user's settings for oneDNN or YNNPACK stay.
    The first call runs the probe: see `answer`.
    """
    flags = environment.get("XLA_FLAGS", "")
    version = _jaxlib()
    users = re.search("onednn|ynn", flags) or not {BY_NAME, "JAX_COMPILATION_CACHE_DIR"}.isdisjoint(
        environment
    )
    if users or version is None:
        return dict(environment)
    told = {**environment, BY_NAME: "1"}
    if version >= FIRST:
        told["XLA_FLAGS"] = " ".join(filter(None, (flags, *SWITCH)))
    works = _tried(tuple((k, told.get(k, "")) for k in ("XLA_FLAGS", BY_NAME)))
    return told if works else dict(environment)


def without_onednn(flags: str) -> str:
    """Return XLA_FLAGS as they were before `with_onednn`."""
    return " ".join(word for word in flags.split(" ") if word not in SWITCH)


def begin() -> None:
    """Apply in this process what `with_onednn` requested, before anything is compiled."""
    if os.environ.get(BY_NAME) == "1":
        from jaxperf.onednn.convolution import use_onednn

        use_onednn()


def _jaxlib() -> tuple[int, ...] | None:
    """The version of jaxlib on an x86 processor, or None."""
    found = re.match(r"(\d+)\.(\d+)", machine.versions(("jaxlib",)).get("jaxlib", ""))
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return tuple(map(int, found.groups())) if x86 and found else None


@functools.cache
def _tried(variables: tuple[tuple[str, str], ...]) -> bool:
    """Whether `answer` succeeds in a process with these variables."""
    environment = {**os.environ, **dict(variables), "JAX_PLATFORMS": "cpu"}
    try:
        command = [sys.executable, "-P", "-c", CHILD]  # -P: no file of the current folder shadows a package
        done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def answer() -> None:
    """Compare a convolution and both gradients with NumPy's, and check that oneDNN computes them.

    Runs in the process that the probe starts.

    Raises:
      AssertionError: they differ, or XLA computes them by itself.
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
    y, dx, dw, dw_few, dw_many = compiled(x, w, g)
    near = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3)
    near(y, sum(a @ w[i, j] for i, j, a in taps))
    near(dw, np.stack([np.einsum("nhwi,nhwo->io", a, g) for *_, a in taps]).reshape(w.shape))
    near(dw_few, dw[:, :, :2])  # few channels have a product of their own
    near(dw_many, np.tile(dw, (8, 4)))
    wanted = np.zeros_like(x)
    for i, j, _ in taps:
        wanted[:, i : i + 12, j : j + 12] += g @ w[i, j].T
    near(dx, wanted)
    program = compiled.as_text() or ""
    assert '"__onednn$convolution"' in program
    # The kernel's gradient has a product for each of its three rows; with few channels it has one
    assert program.count('"__onednn$matmul"') == 7
