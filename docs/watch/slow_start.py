"""Train a network of twelve layers that starts slowly, for three reasons."""

import jax
import jax.numpy as jnp

LAYERS, WIDTH, BATCH = 12, 64, 32


def attend(layer, x):
    q, k, v = (x @ layer[name] for name in ("query", "key", "value"))
    weights = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / WIDTH**0.5)
    return x + weights @ v @ layer["out"]


def predict(layers, x):
    for layer in layers:  # twelve layers in one program
        x = attend(layer, x)
        x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
    return x.mean(axis=1)


@jax.jit
def step(layers, x, y):
    loss, gradient = jax.value_and_grad(lambda p: jnp.mean((predict(p, x) - y) ** 2))(layers)
    return jax.tree.map(lambda p, g: p - 0.003 * g, layers, gradient), loss


@jax.jit
def evaluate(layers, x, y):
    return jnp.mean((predict(layers, x) - y) ** 2)


def normalized(key, rows, columns):
    w = jax.random.normal(key, (rows, columns))  # operation by operation, outside of jit
    w = w - w.mean(axis=0)
    w = w / jnp.sqrt(jnp.sum(w * w, axis=0) + 1e-6)
    return 0.5 * w * jnp.minimum(1.0, (columns / rows) ** 0.5)


def main() -> None:
    sizes = {"query": 1, "key": 1, "value": 1, "out": 1, "up": 4, "down": 0.25}
    keys = iter(jax.random.split(jax.random.key(0), LAYERS * len(sizes)))
    layers = [
        {name: normalized(next(keys), *shape(factor)) for name, factor in sizes.items()}
        for _ in range(LAYERS)
    ]
    x, y = jnp.ones((BATCH, 16, WIDTH)), jnp.zeros((BATCH, WIDTH))
    for _ in range(5):
        layers, _ = step(layers, x, y)
    for length in (9, 11, 13, 16):  # each length compiles anew
        print(f"length {length}: loss {evaluate(layers, x[:, :length], y):.4f}")


def shape(factor):
    return (WIDTH, int(WIDTH * factor)) if factor >= 1 else (int(WIDTH / factor), WIDTH)


if __name__ == "__main__":
    main()
