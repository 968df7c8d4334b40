"""Section 8.1.2: the symbolic program, exported and run by a process that has never seen the network."""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.chapter.network_size import differ
from jaxperf.chapter.run_exported import run_exported
from jaxperf.measure import in_fresh_process
from jaxperf.models import MLP, hybridize
from jaxperf.models.export import export_net, load_net
from jaxperf.report.words import quantity
from jaxperf.script import Story


def export_and_reload(story: Story, net: MLP) -> None:
    """Export a network, show the program in the file, and run it in a process without the network's code.

    Facts: `export_max_abs_diff`, the largest difference between the two processes' outputs.

    Args:
      story: is told what happens.
      net: what to export.
    """
    story.heading("8.1.2 Getting the symbolic program")
    story.text(
        """Since the compiled program needs no Python, it can be stored and run elsewhere. Gluon writes a
        .json file with the program and a .params file with the arrays. `jax.export` writes StableHLO as MLIR
        bytecode, a format that stays readable for years; the arrays go into a safetensors file."""
    )
    story.habit(gluon='net.export("my_mlp")', jax='export_net(net, Path("my_mlp"), x)')
    story.code(export_net)
    x = jax.random.normal(jax.random.key(1), (1, net.layers[0].in_features))
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder) / "my_mlp"
        files = export_net(net, stem, x)
        with story.output(detail=True):
            for file in files:
                print(f"{file.name}: {quantity(file.stat().st_size, 'bytes')}")
            program, arrays = load_net(stem)
            print(f"for {', '.join(program.platforms)}; arrays {', '.join(arrays)}")
            print("\n".join(_operations(program.mlir_module())))
        story.text(
            """Another process, which imports neither Flax nor this package, reads both files and runs the
            program. It still uses JAX, as the shortest way to the XLA compiler. A C++ program can hand the
            same StableHLO to XLA through a PJRT plug-in, and IREE or TensorFlow can compile it too, on a
            machine without Python."""
        )
        story.code(run_exported)
        inputs = Path(folder) / "x.npy"
        np.save(inputs, np.asarray(x))
        answer = in_fresh_process(run_exported, *map(str, (*files, inputs)))
    difference, same = differ(hybridize(net)(x), np.asarray(answer["output"]))
    story.fact("export_max_abs_diff", difference, words="largest difference of the other process's output")
    portable = same and not answer["made_with"]
    story.claim(
        book="Program and parameters can be used without the code that made them",
        holds=portable,
        predicted="the same output in a process without Flax and the network's code",
        right=portable,
        observed=f"largest difference {difference:.1e}; of the two it loaded "
        + (" and ".join(answer["made_with"]) or "neither"),
    )
    story.peers("8.1 export")
    with_a_shape_for_an_array(story, net)


def with_a_shape_for_an_array(story: Story, net: MLP) -> None:
    """Call the compiled network with a description of its input."""
    story.text(
        """A hybridized Gluon network can also be called with a Symbol, and returns a Symbol. In JAX a
        `ShapeDtypeStruct` is the description of an array that does not exist; `jax.eval_shape` traces the
        call and returns the description of its output, without computing anything."""
    )
    story.habit(
        gluon="x = sym.var('data')\nnet(x)",
        jax="x = jax.ShapeDtypeStruct((1, 512), jnp.float32)\njax.eval_shape(hybridize(net), x)",
    )
    with story.output(detail=True):
        print(
            jax.eval_shape(hybridize(net), jax.ShapeDtypeStruct((1, net.layers[0].in_features), jnp.float32))
        )


def _operations(mlir: str) -> list[str]:
    """The operations of a StableHLO module, without their locations in the Python code."""
    return [line.split(" loc(")[0] for line in mlir.splitlines() if "stablehlo." in line]
