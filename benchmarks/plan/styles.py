"""Training steps of four styles for `jaxperf plan`: each is a function of the mesh.

    jaxperf plan benchmarks/plan/styles.py:tensor --mesh data=2,model=4 --devices 8,64,1024

All have blocks of a transformer with flash attention in bfloat16, float32 parameters, and Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from published import Step, make

BF16 = jnp.bfloat16
MICRO = 16  # micro-batches of the pipeline
Made = tuple[Any, tuple[Any, ...]]


def norm(x: jax.Array) -> jax.Array:
    """Normalize the last axis."""
    x = x.astype(jnp.float32)
    return (x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)).astype(BF16)


def attention(x: jax.Array, w: Any) -> jax.Array:
    """Return x (examples, length, width) after causal attention; w["qkv"] is (width, 3, heads, size)."""
    q, k, v = jnp.einsum("btd,dchs->cbths", norm(x), w["qkv"].astype(BF16))
    out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    return x + jnp.einsum("bths,hsd->btd", out, w["out"].astype(BF16))


def perceptron(x: jax.Array, w: Any) -> jax.Array:
    """Return x after two products."""
    return x + jax.nn.gelu(norm(x) @ w["up"].astype(BF16)) @ w["down"].astype(BF16)


def loss_of(x: jax.Array, embed: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of the next tokens."""
    logits = (norm(x) @ embed.astype(BF16).T).astype(jnp.float32)
    return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]).mean()


def adam(p: Any, m: Any, v: Any, g: Any) -> Any:
    """Return parameters and moments after a step."""
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
    return jax.tree.map(lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), p, m, v), m, v


def shape(mesh: Mesh, spec: P, *lengths: int, dtype: Any = jnp.float32) -> Any:
    """Return an array as its shape on the mesh."""
    return jax.ShapeDtypeStruct(lengths, dtype, sharding=NamedSharding(mesh, spec))


def weights(mesh: Mesh, layers: int, width: int, heads: int, lead: str | None, model: str | None) -> Any:
    """Return the parameters of stacked blocks: `lead` shards the layers, `model` the heads."""
    size = width // heads
    return {
        "qkv": shape(mesh, P(lead, None, None, model), layers, width, 3, heads, size),
        "out": shape(mesh, P(lead, model), layers, heads, size, width),
        "up": shape(mesh, P(lead, None, model), layers, width, 4 * width),
        "down": shape(mesh, P(lead, model), layers, 4 * width, width),
    }


def trained(loss: Callable[..., jax.Array]) -> Any:
    """Return the jitted step of a loss of parameters and tokens."""

    def update(p: Any, m: Any, v: Any, tokens: jax.Array) -> Any:
        return adam(p, m, v, jax.grad(loss)(p, tokens))

    return jax.jit(update, donate_argnums=(0, 1, 2))


def tensor(mesh: Mesh) -> Made:
    """GPT-2 (124M), its heads and inner widths over the axis "model", 16 examples for each of "data"."""
    layers, width, heads, length, vocabulary = 12, 768, 12, 1024, 50304
    whole = NamedSharding(mesh, P("data"))

    def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        x = lax.with_sharding_constraint(attention(x, w), whole)
        return lax.with_sharding_constraint(perceptron(x, w), whole), None

    def loss(p: Any, tokens: jax.Array) -> jax.Array:
        x = lax.with_sharding_constraint(p["embed"].astype(BF16)[tokens], whole)
        return loss_of(lax.scan(block, x, p["layers"])[0], p["embed"], tokens)

    p = {
        "embed": shape(mesh, P("model"), vocabulary, width),
        "layers": weights(mesh, layers, width, heads, None, "model"),
    }
    tokens = shape(mesh, P("data"), 16 * mesh.shape["data"], length, dtype=jnp.int32)
    return trained(loss), (p, p, p, tokens)


fsdp = make(
    Step("Llama-2 7B", "h100", 8, 0.0, layers=32, width=4096, heads=32, inner=11008, gated=True, remat="dots",
         examples=2, length=4096, vocabulary=32000)
)  # fmt: skip


def pipeline(mesh: Mesh) -> Made:
    """A stage of three blocks on each device of the axis "stage", through which 16 micro-batches pass."""
    stages, width, heads, length, vocabulary = mesh.shape["stage"], 2048, 16, 1024, 32000
    following = [(i, (i + 1) % stages) for i in range(stages)]

    def local(p: Any, tokens: jax.Array) -> jax.Array:
        def stage(x: jax.Array) -> jax.Array:
            block = jax.checkpoint(lambda x, w: (perceptron(attention(x, w), w), None))
            return lax.scan(block, x, p["layers"])[0]

        def turn(x: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
            entering = p["embed"].astype(BF16)[tokens[jnp.minimum(t, MICRO - 1)]]
            x = stage(jnp.where(lax.axis_index("stage") == 0, entering, x))
            return lax.ppermute(x, "stage", following), x

        zero = jnp.zeros((*tokens.shape[1:], width), BF16)
        _, out = lax.scan(turn, zero, jnp.arange(MICRO + stages - 1))
        mean = loss_of(out[-MICRO:], p["embed"], tokens)
        return jnp.where(lax.axis_index("stage") == stages - 1, mean, 0.0)

    def gradient(p: Any, tokens: jax.Array) -> Any:
        g = lax.pmean(jax.grad(local)(p, tokens), "data")
        return {"embed": lax.psum(g["embed"], "stage"), "layers": g["layers"]}

    specs = {"embed": P(), "layers": dict.fromkeys(("qkv", "out", "up", "down"), P("stage"))}
    mapped = jax.shard_map(
        gradient, mesh=mesh, in_specs=(specs, P(None, "data")), out_specs=specs, check_vma=False
    )

    def update(p: Any, m: Any, v: Any, tokens: jax.Array) -> Any:
        return adam(p, m, v, mapped(p, tokens))

    p = {
        "embed": shape(mesh, P(), vocabulary, width),
        "layers": weights(mesh, 3 * stages, width, heads, "stage", None),
    }
    tokens = shape(mesh, P(None, "data"), MICRO, 2 * mesh.shape["data"], length, dtype=jnp.int32)
    return jax.jit(update, donate_argnums=(0, 1, 2)), (p, p, p, tokens)


def experts(mesh: Mesh) -> Made:
    """Twelve blocks whose perceptron is one of eight experts, one on each device of the axis "expert"."""
    layers, width, heads, length, vocabulary = 12, 1024, 16, 1024, 32000
    count, both = mesh.shape["expert"], ("data", "expert")

    def routed(x: jax.Array, w: Any) -> jax.Array:
        """Send each example's tokens to their experts, at most an equal share to each, and back."""
        rows = norm(x).reshape(-1, width)
        share = len(rows) // count
        scores = jax.nn.softmax((rows @ w["router"].astype(BF16)).astype(jnp.float32))
        weight, chosen = lax.top_k(scores.T, share)  # each expert takes the tokens that fit it best
        sent = lax.all_to_all(rows[chosen], "expert", 0, 0)
        mixed = jax.nn.gelu(sent @ w["up"][0].astype(BF16)) @ w["down"][0].astype(BF16)
        back = lax.all_to_all(mixed, "expert", 0, 0) * weight[..., None].astype(BF16)
        added = jnp.zeros_like(rows).at[chosen.ravel()].add(back.reshape(-1, width))
        return x + added.reshape(x.shape)

    def local(p: Any, tokens: jax.Array) -> jax.Array:
        block = jax.checkpoint(lambda x, w: (routed(attention(x, w), w), None))
        x, _ = lax.scan(block, p["embed"].astype(BF16)[tokens], p["layers"])
        return loss_of(x, p["embed"], tokens)

    def gradient(p: Any, tokens: jax.Array) -> Any:
        g = jax.grad(local)(p, tokens)
        of_experts = {name: lax.pmean(g["layers"].pop(name), "data") for name in ("up", "down")}
        g = lax.pmean(g, both)
        return {"embed": g["embed"], "layers": g["layers"] | of_experts}

    size = width // heads
    p = {
        "embed": shape(mesh, P(), vocabulary, width),
        "layers": {
            "qkv": shape(mesh, P(), layers, width, 3, heads, size),
            "out": shape(mesh, P(), layers, heads, size, width),
            "router": shape(mesh, P(), layers, width, count),
            "up": shape(mesh, P(None, "expert"), layers, count, width, 4 * width),
            "down": shape(mesh, P(None, "expert"), layers, count, 4 * width, width),
        },
    }
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, p)
    mapped = jax.shard_map(gradient, mesh=mesh, in_specs=(specs, P(both)), out_specs=specs, check_vma=False)

    def update(p: Any, m: Any, v: Any, tokens: jax.Array) -> Any:
        return adam(p, m, v, mapped(p, tokens))

    tokens = shape(mesh, P(both), 8 * mesh.size, length, dtype=jnp.int32)
    return jax.jit(update, donate_argnums=(0, 1, 2)), (p, p, p, tokens)
