"""Hold plans of training steps against published step times: `python benchmarks/plan/published.py [NAME...]`.

Each row is a transformer as its source describes it, with its attention, its rematerialization and its
sharding, on its cards. No constant of the model is set by these rows. The result is published.csv, one row
per step, whose summary `jaxperf/plan/accuracy.py` repeats. It needs JAX's CUDA plugin; a row takes 30 s.
"""

from __future__ import annotations

import csv
import functools
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
# what the sources set, as far as this XLA knows it
FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_while_loop_double_buffering=true "
    "--xla_gpu_enable_pipelined_all_gather=true --xla_gpu_enable_pipelined_reduce_scatter=true "
    "--xla_gpu_enable_pipelined_all_reduce=true"
)


@dataclass(frozen=True)
class Step:
    """A published step: its model, its devices, and its seconds."""

    name: str
    card: str
    devices: int
    seconds: float
    layers: int
    width: int
    heads: int
    inner: int
    examples: int  # of each device
    length: int
    vocabulary: int
    kv_heads: int = 0  # 0: as many as heads
    head: int = 0  # width of a head; 0: width / heads
    gated: bool = False
    fused: bool = True  # flash attention
    remat: str = ""
    scanned: bool = True
    sharded: bool = True  # FSDP; else data parallel
    moments_sharded: bool = False  # without FSDP, only the optimizer's state is sharded (ZeRO-1)
    untied: bool = False  # whether the last product has a matrix of its own
    experts: int = 0  # of each layer, in place of its perceptron
    chosen: int = 0  # experts for each token
    eager_loss: bool = False  # whether PyTorch runs the loss one operation at a time, in float32
    lora: int = 0  # rank of what is trained beside frozen bfloat16 queries and values; 0: all is trained
    source: str = ""
    framework: str = "JAX"
    assumed: str = ""


GPT_5B: dict[str, Any] = {
    "layers": 24, "width": 4096, "heads": 32, "inner": 16384, "length": 2048, "vocabulary": 50304,
    "remat": "dots",
}  # fmt: skip
GPT_126M: dict[str, Any] = {
    "layers": 12, "width": 768, "heads": 12, "inner": 3072, "length": 2048, "vocabulary": 50304,
    "examples": 4, "scanned": False, "sharded": False, "assumed": "no rematerialization",
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "inner": 28672, "gated": True, "remat": "qkv",
    "examples": 2,
}  # fmt: skip
MPT: dict[str, Any] = {
    "length": 2048, "vocabulary": 50368, "framework": "PyTorch",
    "source": "mosaicml/llm-foundry, scripts/train/benchmarking/README.md, H100 bfloat16",
}  # fmt: skip
PAX = "NVIDIA/JAX-Toolbox, rosetta/projects/pax/README.md; paxml configs.py"
RECIPE = "NVIDIA/dgxc-benchmarking, paxml/README_5b.md, bfloat16"
MAXTEXT = "NVIDIA/dgxc-benchmarking, maxtext/README_70b.md and configure.sh, bfloat16"
HEADS = "step card devices published_s predicted_s ratio waits_s flops peak_gb jax framework source assumed"
AS_TE = "attention and rematerialization as in the A100 rows with Transformer Engine"
STEPS = (
    Step("GPT 126M", "a100", 64, 256 / 1761.3, fused=False, source=PAX, **GPT_126M),
    Step("GPT 126M, TE", "a100", 64, 256 / 2339.8, source=PAX, **GPT_126M),
    Step("GPT 5B", "a100", 256, 2048 / 465.45, fused=False, examples=8, source=PAX, **GPT_5B),
    Step("GPT 5B, TE", "a100", 256, 2048 / 598.83, examples=8, source=PAX, **GPT_5B),
    Step("GPT 5B", "h100", 16, 0.634, examples=4, source=RECIPE, assumed=AS_TE, **GPT_5B),
    Step("GPT 5B", "h100", 64, 0.643, examples=4, source=RECIPE, assumed=AS_TE, **GPT_5B),
    Step("GPT 5B", "h100", 128, 0.651, examples=4, source=RECIPE, assumed=AS_TE, **GPT_5B),
    Step("Llama-2 70B", "h100", 64, 6.999, length=4096, vocabulary=32000, source=MAXTEXT, **LLAMA),
    Step("Llama-2 70B", "h100", 256, 7.153, length=4096, vocabulary=32000, source=MAXTEXT, **LLAMA),
    Step("Llama-3 70B", "h100", 128, 15.563, length=8192, vocabulary=128256,
         source="NVIDIA/dgxc-benchmarking, MaxText Llama-3 70B recipe, bfloat16", **LLAMA),
    Step("MPT 1B", "h100", 8, 229376 / 363645, layers=24, width=2048, heads=16, inner=8192, examples=14,
         **MPT),
    Step("MPT 7B", "h100", 8, 98304 / 85144, layers=32, width=4096, heads=32, inner=16384, examples=6, **MPT),
    Step("MPT 13B", "h100", 64, 262144 / 307209, layers=40, width=5120, heads=40, inner=20480, examples=2,
         **MPT),
)  # fmt: skip


def make(step: Step) -> Any:
    """Return a function of the mesh that returns the training step and its arguments, as shapes."""
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    head, kv = step.head or step.width // step.heads, step.kv_heads or step.heads
    policies = {
        "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        "qkv": jax.checkpoint_policies.save_only_these_names("query", "key", "value"),
        "nothing": None,
    }
    bf16 = jnp.bfloat16
    # PyTorch's operations keep their inputs for the backward pass, and nothing between
    as_one = jax.checkpoint if step.framework == "PyTorch" else lambda f: f

    @as_one
    def norm(x: Any, scale: Any) -> Any:
        x = x.astype(jnp.float32)
        return (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale).astype(bf16)

    @as_one
    def bend(gate: Any, up: Any) -> Any:
        return jax.nn.silu(gate) * up if step.gated else jax.nn.gelu(up)

    def inside(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
        of_batch = NamedSharding(mesh, P("data"))
        keep = lambda x: jax.lax.with_sharding_constraint(x, of_batch)  # noqa: E731

        @functools.partial(
            jax.shard_map, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False
        )
        def routed(h: Any, w: Any) -> Any:
            """Send each token to its experts, of which each gets an equal share."""
            rows = h.reshape(-1, step.width)
            scores = jax.nn.softmax((rows @ w["router"]).astype(jnp.float32))
            weight, experts = jax.lax.top_k(scores, step.chosen)
            order = jnp.argsort(experts.ravel())
            sent = rows[order // step.chosen].reshape(step.experts, -1, step.width)
            gate, up = (jnp.einsum("ecd,edf->ecf", sent, w[name]) for name in ("gate", "up"))
            mixed = jnp.einsum("ecf,efd->ecd", bend(gate, up), w["down"]).reshape(-1, step.width)
            mixed = mixed * weight.ravel()[order][:, None].astype(bf16)
            return jnp.zeros_like(rows).at[order // step.chosen].add(mixed).reshape(h.shape)

        def layer(x: Any, w: Any) -> tuple[Any, None]:
            w = jax.tree.map(lambda a: a.astype(bf16) if a.ndim > 1 else a, w)
            h = norm(x, w["norm_1"])
            named = {name: h @ w[name] for name in ("query", "key", "value")}
            for name in ("query", "value") if step.lora else ():
                named[name] += (h @ w[f"{name}_a"]) @ w[f"{name}_b"]
            q, k, v = (checkpoint_name(a, name).reshape(*a.shape[:2], -1, head) for name, a in named.items())
            if not step.fused and kv == step.heads:
                out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            else:
                out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
            x = keep(x + out.reshape(*x.shape[:2], -1) @ w["out"])
            h = norm(x, w["norm_2"])
            if step.experts:
                return keep(x + routed(h, {name: w[name] for name in ("router", "gate", "up", "down")})), None
            return keep(x + bend(h @ w["gate"] if step.gated else None, h @ w["up"]) @ w["down"]), None

        def one_by_one(logits: Any, tokens: Any) -> Any:
            apart = jax.lax.optimization_barrier
            found = apart(jax.nn.log_softmax(apart(logits.astype(jnp.float32))))
            return -jnp.take_along_axis(found, tokens[..., None], -1).mean()

        @as_one
        def entropy(logits: Any, tokens: Any) -> Any:
            logits = logits.astype(jnp.float32)
            wanted = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
            return (jax.nn.logsumexp(logits, -1) - wanted).mean()

        def loss(trained: Any, frozen: Any, tokens: Any) -> Any:
            p = {**frozen, **trained, "layers": {**frozen.get("layers", {}), **trained["layers"]}}
            x = keep(p["embed"].astype(bf16)[tokens])
            body = jax.checkpoint(layer, policy=policies[step.remat]) if step.remat else layer
            if step.scanned:
                x, _ = jax.lax.scan(body, x, p["layers"])
            else:
                for i in range(step.layers):
                    x, _ = body(x, jax.tree.map(lambda a, i=i: a[i], p["layers"]))
            logits = norm(x, p["norm"]) @ p.get("head", p["embed"]).astype(bf16).T
            return one_by_one(logits, tokens) if step.eager_loss else entropy(logits, tokens)

        def update(p: Any, m: Any, v: Any, frozen: Any, tokens: Any) -> Any:
            value, g = jax.value_and_grad(loss)(p, frozen, tokens)
            length = jnp.sqrt(sum((a.astype(jnp.float32) ** 2).sum() for a in jax.tree.leaves(g)))
            g = jax.tree.map(lambda a: a * jnp.minimum(1.0, 1.0 / length).astype(a.dtype), g)
            m = jax.tree.map(lambda m, a: 0.9 * m + 0.1 * a, m, g)
            v = jax.tree.map(lambda v, a: 0.95 * v + 0.05 * a * a, v, g)
            p = jax.tree.map(lambda p, m, v: p - 1e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), p, m, v)
            return p, m, v, value

        def shape(*dims: int) -> Any:
            where = P()
            if step.sharded and len(dims) > 1:
                axis = len(dims) - (2 if dims[-2] % mesh.size == 0 else 1)
                where = P(*[None] * axis, "data")
            dtype = bf16 if step.lora else jnp.float32
            return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, where))

        n, d = step.layers, step.width
        each = (step.experts,) if step.experts else ()
        layers = {
            "query": shape(n, d, step.heads * head), "key": shape(n, d, kv * head),
            "value": shape(n, d, kv * head), "out": shape(n, step.heads * head, d),
            "up": shape(n, *each, d, step.inner), "down": shape(n, *each, step.inner, d),
        }  # fmt: skip
        if step.gated:
            layers["gate"] = shape(n, *each, d, step.inner)
        if step.experts:
            layers["router"] = shape(n, d, step.experts)
        for name in ("norm_1", "norm_2"):
            layers[name] = jax.ShapeDtypeStruct((n, d), jnp.float32, sharding=NamedSharding(mesh, P()))
        p = {"embed": shape(step.vocabulary, d), "norm": shape(d), "layers": layers}
        if step.untied:
            p["head"] = shape(step.vocabulary, d)
        frozen: dict[str, Any] = {}
        if step.lora:
            ranks = {"a": (n, d, step.lora), "b": (n, step.lora, d)}
            added = {f"{q}_{i}": shape(*dims) for q in ("query", "value") for i, dims in ranks.items()}
            frozen, p = p, {"layers": added}
        tokens = jax.ShapeDtypeStruct(
            (step.examples * mesh.size, step.length), jnp.int32, sharding=NamedSharding(mesh, P("data"))
        )
        moments = p
        if step.moments_sharded:
            over = NamedSharding(mesh, P(None, "data"))
            moments = jax.tree.map(
                lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=over) if a.ndim > 1 else a, p
            )
        return jax.jit(update, donate_argnums=(0, 1, 2)), (p, moments, moments, frozen, tokens)

    return inside


def main(names: list[str]) -> None:
    """Plan the steps whose names are given, or all, and write published.csv."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    import jax

    from jaxperf.plan.planning import plan

    rows = []
    for step in STEPS:
        if names and not any(name in f"{step.name} {step.devices}" for name in names):
            continue
        began = time.perf_counter()
        (size,) = plan(make(step), device=step.card, devices=(step.devices,), batch=(4,)).sizes
        assert size.time is not None
        rows.append(
            [step.name, step.card, step.devices, f"{step.seconds:.4g}", f"{size.time.step_s:.4g}",
             f"{size.time.step_s / step.seconds:.3f}", f"{size.time.waits_s:.3g}", f"{size.time.flops:.4g}",
             f"{size.peak_bytes / 1e9:.1f}", jax.__version__, step.framework, step.source, step.assumed]
        )  # fmt: skip
        print(*rows[-1][:9], f"{time.perf_counter() - began:.0f} s", flush=True)
    if not names:
        with (FOLDER / "published.csv").open("w", encoding="utf-8", newline="") as file:
            file.write("# Written by published.py: published and predicted seconds of training steps.\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEADS.split())
            writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
