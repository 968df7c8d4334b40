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
SUMS = "JAXPERF_WINOGRAD"  # "1" where `models.winograd` pays for convolutions, too
CHILD = "from jaxperf.onednn import answer; answer()"


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
    # Where each large array is mapped anew, sums of pixels are dear; how many heaps there are matters little.
    allocator = [k for k in told if k.startswith("MALLOC_") and k != "MALLOC_ARENA_MAX"]
    found = _tried(tuple((k, told.get(k, "")) for k in ("XLA_FLAGS", BY_NAME, *sorted(allocator))))
    if found is None:
        return dict(environment)
    return {SUMS: found, **told} if found else told


def without_onednn(flags: str) -> str:
    """Return XLA_FLAGS as they were before `with_onednn`."""
    return " ".join(word for word in flags.split(" ") if word not in SWITCH)


def begin() -> None:
    """Apply in this process what `with_onednn` requested, before anything is compiled."""
    if os.environ.get(BY_NAME) == "1":
        from jaxperf.models.convolution import use_onednn

        use_onednn()


def _jaxlib() -> tuple[int, ...] | None:
    """The version of jaxlib on an x86 processor, or None."""
    found = re.match(r"(\d+)\.(\d+)", machine.versions(("jaxlib",)).get("jaxlib", ""))
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return tuple(map(int, found.groups())) if x86 and found else None


@functools.cache
def _tried(variables: tuple[tuple[str, str], ...]) -> str | None:
    """What `answer` prints in a process with these variables; None if it fails."""
    environment = {**os.environ, **dict(variables), "JAX_PLATFORMS": "cpu"}
    try:
        command = [sys.executable, "-P", "-c", CHILD]  # -P: no file of the current folder shadows a package
        done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode().strip() if done.returncode == 0 else None


def answer() -> None:
    """Compare a convolution and both gradients with NumPy's, and check that oneDNN computes them.

    The same convolution is compared with a kernel in oneDNN's layout, as frozen networks pass it. Then print
    "1" if convolutions from products of tiles are faster here. Runs in the process that the probe starts.

    Raises:
      AssertionError: they differ, or XLA computes them by itself.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    from jaxperf.models.prepacked import packed
    from jaxperf.models.window import Window

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
    near(dw_few, dw[:, :, :2])  # few channels have a product of their own, many have products of tiles
    near(dw_many, np.tile(dw, (8, 4)))
    wanted = np.zeros_like(x)
    for i, j, _ in taps:
        wanted[:, i : i + 12, j : j + 12] += g @ w[i, j].T
    near(dx, wanted)
    program = compiled.as_text() or ""
    assert '"__onednn$convolution"' in program
    # The kernel's gradient has a product for each of its three rows; few channels have one, many have four
    assert program.count('"__onednn$matmul"') == 8
    laid_out = packed(w, x.shape, Window((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)))
    if laid_out:
        near(jax.jit(laid_out)(x), y)
    print("1" if _sums_are_cheap() else "")


def _sums_are_cheap() -> bool:
    """Measure a layer by oneDNN's convolution and from products of tiles, in turns, and compare results.

    Raises:
      AssertionError: the results differ.
    """
    import jax
    import numpy as np
    from jax import lax

    from jaxperf.measure import interleaved
    from jaxperf.models import winograd
    from jaxperf.models.window import Window

    def usual(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def tiles(x: jax.Array, w: jax.Array) -> jax.Array:
        return winograd.convolution(x, w, Window((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1)))

    channels = winograd.LAYER[3]
    shapes = winograd.LAYER, (*winograd.KERNEL, channels, channels)
    x, w = map(jax.random.normal, jax.random.split(jax.random.key(0)), shapes)
    compiled = {fn.__name__: jax.jit(fn).lower(x, w).compile() for fn in (usual, tiles)}
    y, again = (np.asarray(program(x, w)) for program in compiled.values())
    np.testing.assert_allclose(again, y, rtol=0, atol=1e-5 * np.abs(y).max())
    calls = {name: functools.partial(program, x, w) for name, program in compiled.items()}
    fastest = [min(m.values) for m in interleaved(calls, count=15).values()]  # what others disturb the least
    return fastest[0] >= winograd.CHEAP * fastest[1]
