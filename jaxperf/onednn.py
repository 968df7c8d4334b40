"""oneDNN's convolutions on a CPU: jaxlib carries them, and from 0.12 on XLA uses them if it is told to.

The switch is part of XLA_FLAGS, which XLA reads when JAX starts, so it is for processes yet to be started.
One device's training step on 2 cores with JAX 0.12.0.1, with the switch over without it, in three turns:
LeNet, batch 256, 1.8, 1.7 and 1.5 times the images/s; ResNet-18, batch 32, 1.8, 1.8 and 1.9 times.
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
    # XLA's default library would take a convolution that stands alone before oneDNN can
    "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution",
)
FIRST = (0, 12)  # jaxlib 0.10.2 knows the switch, but computes convolutions in its slowest way then
PROBE = """
import jax, numpy as np
from jax import lax

rng = np.random.default_rng(0)
x, w, g = (rng.normal(size=s).astype("f") for s in ((8, 14, 14, 16), (3, 3, 16, 32), (8, 12, 12, 32)))
taps = [(i, j, x[:, i : i + 12, j : j + 12]) for i in range(3) for j in range(3)]
layout = ("NHWC", "HWIO", "NHWC")
conv = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=layout)
both = jax.jit(lambda x, w, g: (conv(x, w), *jax.vjp(conv, x, w)[1](g))).lower(x, w, g).compile()
y, dx, dw = both(x, w, g)
near = lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
near(y, sum(a @ w[i, j] for i, j, a in taps))
near(dw, np.stack([np.einsum("nhwi,nhwo->io", a, g) for _, _, a in taps]).reshape(w.shape))
wanted = np.zeros_like(x)
for i, j, _ in taps:
    wanted[:, i : i + 12, j : j + 12] += g @ w[i, j].T
near(dx, wanted)
assert "onednn" in both.as_text()
"""


def with_onednn(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process to be started, with the switch where oneDNN can be used.

    It cannot on another processor than x86 and before jaxlib 0.12, and what the user has set about oneDNN or
    YNNPACK stays. The first call tries it out in a process of its own, which compares convolutions and their
    gradients with NumPy's: XLA ends a process that gives it a flag it no longer knows.
    """
    flags = environment.get("XLA_FLAGS", "")
    if not re.search("onednn|ynn", flags) and _installed() and _works():
        return {**environment, "XLA_FLAGS": " ".join(filter(None, (flags, *SWITCH)))}
    return dict(environment)


def without_onednn(flags: str) -> str:
    """Return XLA_FLAGS as they were before `with_onednn`."""
    return " ".join(word for word in flags.split(" ") if word not in SWITCH)


def _installed() -> bool:
    found = re.match(r"(\d+)\.(\d+)", machine.versions(("jaxlib",)).get("jaxlib", ""))
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return x86 and found is not None and tuple(map(int, found.groups())) >= FIRST


@functools.cache
def _works() -> bool:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(SWITCH)}
    try:
        command = [sys.executable, "-P", "-c", PROBE]  # -P: no file of the current folder shadows a package
        done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
