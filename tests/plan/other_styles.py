"""Training steps of other styles than data parallelism, each small; what a plan says of them is tested."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, LAYERS, EXAMPLES = 64, 12, 8


def _shape(mesh, spec, *lengths, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(lengths, dtype, sharding=NamedSharding(mesh, spec))


def _update(loss, *, remat=False):
    if remat:
        loss = jax.checkpoint(loss)

    @jax.jit
    def step(p, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p, x))

    return step


def tensor_parallel(mesh):
    """Twelve layers whose products are split over the second axis: each sums activations, both ways."""

    def loss(p, x):
        for up, down in p:
            x = x + jnp.tanh(x @ up) @ down
            x = lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))
        return (x**2).mean()

    layer = (_shape(mesh, P(None, "model"), WIDTH, 256), _shape(mesh, P("model"), 256, WIDTH))
    return _update(loss), ([layer] * LAYERS, _shape(mesh, P("data"), EXAMPLES * mesh.shape["data"], WIDTH))


def experts(mesh):
    """Each device has an expert, to which the others send examples and from which they come back."""

    def inside(w, x):
        def loss(w):
            sent = lax.all_to_all(x.reshape(mesh.size, -1, WIDTH), "data", 0, 0)
            back = lax.all_to_all(jnp.tanh(sent @ w[0]), "data", 0, 0)
            return (back**2).mean()

        return w - 0.1 * jax.grad(loss)(w)

    step = jax.shard_map(
        inside, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P("data"), check_vma=False
    )
    w = _shape(mesh, P("data"), mesh.size, WIDTH, WIDTH)
    return jax.jit(step), (w, _shape(mesh, P("data"), 64 * mesh.size, WIDTH))


def pipeline(mesh):
    """A stage on each device; sixteen micro-batches pass from one to the next."""
    count, micro = mesh.size, 16

    def inside(w, xs):
        def loss(w):
            def turn(h, t):
                first = lax.axis_index("data") == 0
                h = jnp.tanh(jnp.where(first, xs[jnp.minimum(t, micro - 1)], h) @ w[0])
                return lax.ppermute(h, "data", [(i, (i + 1) % count) for i in range(count)]), h

            _, out = lax.scan(turn, jnp.zeros_like(xs[0]), jnp.arange(micro + count - 1))
            return (out[-micro:] ** 2).mean()

        return w - 0.1 * jax.grad(loss)(w)

    step = jax.shard_map(inside, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    return jax.jit(step), (_shape(mesh, P("data"), count, 256, 256), _shape(mesh, P(), micro, 4, 256))


def loss_summed(mesh):
    """Only the last device has the loss, which all sum: its derivative, 1, is summed, too."""

    def inside(w, x):
        def loss(w):
            last = lax.axis_index("data") == mesh.size - 1
            return lax.psum(jnp.where(last, (jnp.tanh(x @ w) ** 2).mean(), 0.0), "data")

        return w - 0.1 * lax.pmean(jax.grad(loss)(w), "data")

    step = jax.shard_map(inside, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    return jax.jit(step), (_shape(mesh, P(), WIDTH, WIDTH), _shape(mesh, P("data"), 8 * mesh.size, WIDTH))


def stencil(mesh):
    """Values on a grid: in each of 20 turns, neighbors send each other their edges, in both directions."""
    right = [(i, (i + 1) % mesh.size) for i in range(mesh.size)]

    def inside(w, x):
        def loss(w):
            def turn(h, _):
                low = lax.ppermute(h[-1:], "data", right)
                high = lax.ppermute(h[:1], "data", [(b, a) for a, b in right])
                h = jnp.concatenate([low, h, high])
                return jnp.tanh((h[:-2] + h[2:]) @ w), None

            return (lax.scan(turn, x, None, length=20)[0] ** 2).mean()

        return w - 0.1 * lax.pmean(jax.grad(loss)(w), "data")

    step = jax.shard_map(inside, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    return jax.jit(step), (_shape(mesh, P(), WIDTH, WIDTH), _shape(mesh, P("data"), 32 * mesh.size, WIDTH))


def ring(mesh, *, rounds=1):
    """Keys go round all devices, as in ring attention: each device multiplies in each turn."""
    count = mesh.size

    def inside(w, x):
        def loss(w):
            def turn(c, _):
                total, keys = c
                passed = lax.ppermute(keys, "data", [(i, (i + 1) % count) for i in range(count)])
                return (total + jnp.tanh(x @ keys.T) @ keys, passed), None

            (total, _), _ = lax.scan(turn, (jnp.zeros_like(x), x @ w), None, length=rounds * count)
            return (total**2).mean()

        return w - 0.1 * lax.pmean(jax.grad(loss)(w), "data")

    step = jax.shard_map(inside, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    return jax.jit(step), (_shape(mesh, P(), WIDTH, WIDTH), _shape(mesh, P("data"), 32 * mesh.size, WIDTH))


def sharded(mesh, *, remat=False):
    """Parameters sharded over the devices (FSDP), activations over the batch."""
    batch = NamedSharding(mesh, P("data"))

    def loss(p, x):
        for w in p:
            x = lax.with_sharding_constraint(jnp.tanh(x @ w), batch)
        return (x**2).mean()

    p = [_shape(mesh, P("data"), 1024, 1024)] * 4
    return _update(loss, remat=remat), (p, _shape(mesh, P("data"), EXAMPLES * mesh.size, 1024))


def activations_gathered(mesh):
    """Parameters sharded by their columns, and activations that nothing constrains: XLA gathers these."""

    def loss(p, x):
        for w in p:
            x = lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, P(None, "data")))
        return (x**2).mean()

    p = [_shape(mesh, P(None, "data"), 1024, 1024)] * 4
    return _update(loss), (p, _shape(mesh, P("data"), 512 * mesh.size, 1024))


@jax.jit
def accumulated(p, x):
    """Gradients of four micro-batches, of which each is a part of the batch on two of eight devices."""

    def turn(total, micro):
        grads = jax.grad(lambda p: (jnp.tanh(micro @ p) ** 2).mean())(p)
        return total + grads, None

    total, _ = lax.scan(turn, jnp.zeros_like(p), x.reshape(4, -1, x.shape[1]))
    return p - 0.1 * total


def mapped(devices):
    """A step of `jax.pmap`, whose arguments begin with the devices."""

    def train_step(w, x):
        return w - lax.pmean(jax.grad(lambda w: ((x @ w) ** 2).mean())(w), "d")

    w = jax.ShapeDtypeStruct((len(devices), WIDTH, WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((len(devices), 32, WIDTH), jnp.float32)
    return jax.pmap(train_step, axis_name="d", devices=devices), (w, x)


@jax.jit
def recurrent(p, x, y):
    """A recurrent net over 60 turns, of few and tiny kernels each; the first axis is the batch."""

    def loss(p):
        def cell(h, u):
            return jnp.tanh(u @ p["in"] + h @ p["out"]), None

        h, _ = lax.scan(cell, jnp.zeros((x.shape[0], 32)), x.swapaxes(0, 1))
        return ((h - y) ** 2).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p))


@jax.jit
def time_major(w, xs, ys):
    """A recurrent net whose arrays begin with the time, as in Haiku's."""

    def loss(w):
        def body(h, x):
            h = jnp.tanh(x @ w["in"] + h @ w["hidden"])
            return h, h @ w["out"]

        _, out = lax.scan(body, jnp.zeros((xs.shape[1], 16)), xs)
        return ((out - ys) ** 2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w))


def time_major_arguments():
    w = {"in": jnp.ones((4, 16)), "hidden": jnp.ones((16, 16)), "out": jnp.ones((16, 4))}
    return w, jnp.ones((24, 32, 4)), jnp.ones((24, 32, 4))


def _generator(split):
    @jax.jit
    def step(w, real, key):
        def loss(w):
            noise = jax.random.normal(key, (real.shape[0], WIDTH))
            if split:
                noise = lax.with_sharding_constraint(noise, P("data"))
            for _ in range(6):
                noise = jnp.tanh(noise @ w)
            return noise.mean() + (real @ w).mean()

        return w - 0.1 * jax.grad(loss)(w)

    return step


generator, generator_split = _generator(False), _generator(True)


@jax.jit
def drawn(w, key):
    """A step that draws its own batch."""
    x = jax.random.normal(key, (256, 8))
    return w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
