"""A training step on many devices, four ways with one signature: what sections 8.4 and 8.5 define, to import.

    step = make_step("pmap", model_of(resnet18(rngs=nnx.Rngs(0))), optax.sgd(0.1), first_devices(2))
    state = step.init()
    state, metrics = step(state, X, y)

All four compute `gradient` on a share of the batch and `update` with the sums of all shares. They differ in
who decides how the work is divided and where the sums over devices are:

    manual      our Python loop: programs queued device by device, sums by `allreduce`
    pmap        one program per device; we write `lax.psum`
    shard_map   the same program for one device over a named mesh; we write `lax.psum`
    jit         one program for the whole batch; the compiler divides it and inserts the sums
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError

Tree = Any
Way = Literal["manual", "pmap", "shard_map", "jit"]
WAYS: tuple[Way, ...] = get_args(Way)
BatchNorm = Literal["share", "whole"]
State = Any  # a TrainState whose arrays have a copy on every device; by hand a list of one per device
AXIS = "devices"


def first_devices(count: int | None = None, *, platform: str | None = None) -> list[jax.Device]:
    """Return the first `count` devices of a platform; all of them for None.

    Args:
      count: how many.
      platform: "cpu" or "gpu"; JAX's default platform for None.

    Raises:
      JaxperfError: there are fewer, or `count` is not positive.
    """
    devices = jax.devices(platform)
    if count is None:
        return devices
    if not 1 <= count <= len(devices):
        there, name = len(devices), devices[0].platform
        more = "; set JAX_NUM_CPU_DEVICES before JAX starts for more" if name == "cpu" else ""
        raise JaxperfError(f"{count} devices asked for, {there} {name} there; use 1 to {there}{more}")
    return devices[:count]


def split_and_load(data: Any, devices: Sequence[jax.Device]) -> list[jax.Array]:
    """Cut `data` along its first axis and copy each share to its device (section 8.4.3).

    Args:
      data: (n, ...), a NumPy or JAX array; only the shares are copied, each once.
      devices: one per share, in order.

    Returns:
      One array (n / k, ...) for each of k devices. The copies are queued; this does not wait for them.

    Raises:
      JaxperfError: no devices, or their number does not divide the batch.
    """
    if not devices:
        raise JaxperfError("no devices to split the batch among; give at least 1")
    _check_divisible(len(data), len(devices))
    m = len(data) // len(devices)
    return [jax.device_put(data[i * m : (i + 1) * m], d) for i, d in enumerate(devices)]


def _check_divisible(n: int, parts: int) -> None:
    if n % parts or not n:
        low = n // parts * parts
        sizes = f"{low} or {low + parts}" if low else f"{parts}"
        raise JaxperfError(f"batch size {n} is not divisible by {parts} devices; use {sizes}")


def allreduce(data: Sequence[Tree]) -> list[Tree]:
    """Add `data[1:]` to `data[0]`, on its device, and copy the sum to every other device (section 8.4.3).

    The book overwrites its arrays; JAX's are immutable, so the sums are returned, without waiting for them.

    Args:
      data: for each device an array, or a tree of arrays such as a list of gradients, all of the same
        structure and shapes; each is on a device of its own.

    Returns:
      The sum, once per device, in the order of `data`.

    Raises:
      JaxperfError: nothing to add, or structures or shapes that differ.
    """
    if not data:
        raise JaxperfError("allreduce of an empty list; give one array per device")
    shapes = [jax.tree.map(jnp.shape, tree) for tree in data]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise JaxperfError(f"allreduce of shape {shapes[0]} on device 0 and {shape} on device {i}")
    total = data[0]
    for other in data[1:]:
        total = _add(total, _copy_to(other, data[0]))
    return [total] + [_copy_to(total, other) for other in data[1:]]


def _copy_to(tree: Tree, like: Tree) -> Tree:
    return jax.device_put(tree, jax.tree.map(lambda a: a.sharding, like))


@jax.jit
def _add(a: Tree, b: Tree) -> Tree:
    return jax.tree.map(jnp.add, a, b)


@dataclass(frozen=True)
class Model:
    """A network split into its function, its trained parameters and its running statistics."""

    #: `apply(params, stats, X, train=...)` gives (logits, new stats). If there are statistics, it also takes
    #: `axis_name`: BatchNorm then averages its training statistics over that axis of devices.
    apply: Callable[..., tuple[jax.Array, Tree]]
    params: Tree  #: the trained arrays, float
    stats: Tree  #: BatchNorm's running statistics, an empty tree if there are none


def model_of(net: Any) -> Model:
    """Return a Flax module (`nnx.Module`) as a `Model`; the module itself is left alone.

    Raises:
      JaxperfError: state other than parameters and BatchNorm statistics, such as dropout's keys.
    """
    from flax import nnx

    parts: Any = nnx.split(net, nnx.Param, nnx.BatchStat, ...)
    graphdef, params, stats, rest = parts
    if jax.tree.leaves(rest):
        kinds = ", ".join(sorted({type(v).__name__ for _, v in nnx.to_flat_state(rest)}))
        raise JaxperfError(f"state of kind {kinds} is not divided among devices; use a net without it")

    def apply(
        params: Tree, stats: Tree, X: jax.Array, *, train: bool, axis_name: str | None = None
    ) -> tuple[jax.Array, Tree]:
        merged = nnx.merge(graphdef, params, stats, rest)
        if train:
            merged.train()
        else:
            merged.eval()
        for _, module in nnx.iter_modules(merged):
            if isinstance(module, nnx.BatchNorm):
                module.axis_name = axis_name
        logits = merged(_scaled(X))
        return logits, nnx.to_pure_dict(nnx.state(merged, nnx.BatchStat))

    return Model(apply, nnx.to_pure_dict(params), nnx.to_pure_dict(stats))


def model_of_function(net: Callable[[jax.Array, Tree], jax.Array], params: Tree) -> Model:
    """Return a function of images and parameters, such as `lenet(X, params)`, as a `Model` without stats."""

    def apply(params: Tree, stats: Tree, X: jax.Array, *, train: bool) -> tuple[jax.Array, Tree]:
        return net(_scaled(X), params), stats

    return Model(apply, params, {})


def _scaled(X: jax.Array) -> jax.Array:
    """Return images that travelled as bytes as float32 0..1, and others as they are."""
    return X.astype(jnp.float32) / 255 if X.dtype == jnp.uint8 else X


def softmax_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return each example's loss, (n,), float32 or wider, of logits (n, classes) and integer labels (n,)."""
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return -jnp.take_along_axis(jax.nn.log_softmax(wide), labels[:, None], axis=1)[:, 0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What a training step takes and returns: parameters, BatchNorm's statistics, the optimizer's state."""

    params: Tree
    stats: Tree
    opt_state: Tree


@dataclass(frozen=True)
class Step:
    """A training step on `devices`; `step(state, X, y)` gives the new state and the batch's metrics."""

    way: Way  #: which of the four
    devices: tuple[jax.Device, ...]  #: where it runs
    model: Model  #: the network with its initial values
    optimizer: Any  #: Optax's
    programs: Mapping[str, Any]  #: what it runs, to time: by hand "gradient" and "update", otherwise "step"

    def init(self, model: Model | None = None) -> State:
        """Return a fresh state on all devices: copies of the values of `model`, or else of the step's own."""
        source = model or self.model
        state = TrainState(source.params, source.stats, jax.jit(self.optimizer.init)(source.params))
        if self.way == "manual":
            # No copy shares the original's memory, which the step would free
            return [jax.device_put(state, device, may_alias=False) for device in self.devices]
        # Copied first: `device_put` to a sharding reuses the memory of an array that is already on one of the
        # devices, whatever its `may_alias` says (JAX 0.10)
        return jax.device_put(_copy(state), NamedSharding(_mesh(self.devices), P()))

    def read(self, state: State) -> TrainState:
        """Return the state as one `TrainState`; by hand it is the first device's, which equals the others."""
        return state[0] if self.way == "manual" else state

    def load(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Start copying a batch's shares to the devices.

        Raises:
          JaxperfError: a batch that does not divide among the devices.
        """
        if self.way == "manual":
            return split_and_load(X, self.devices), split_and_load(y, self.devices)
        k = len(self.devices)
        _check_divisible(len(y), k)
        if self.way == "pmap":  # with an axis of devices
            X, y = (a.reshape(k, -1, *a.shape[1:]) for a in (X, y))
        return jax.device_put((X, y), NamedSharding(_mesh(self.devices), P(AXIS)))

    def run(self, state: State, shares: tuple[Any, Any]) -> tuple[State, dict[str, jax.Array]]:
        """Train on a loaded batch; the work is queued without waiting, and `state` is donated."""
        if self.way != "manual":
            return self.programs["step"](state, *shares)
        gradient, update = self.programs["gradient"], self.programs["update"]
        # JAX queues work and returns, so a plain loop over devices makes them all compute at the same time
        sums = [gradient(one, X, y) for one, X, y in zip(state, *shares)]
        n = sum(map(len, shares[1]))
        new = [update(one, total, n) for one, total in zip(state, allreduce(sums))]
        return [one for one, _ in new], new[0][1]  # every device has the same metrics

    def __call__(self, state: State, X: Any, y: Any) -> tuple[State, dict[str, jax.Array]]:
        """Train on images (n, ...) and labels (n,), n the full batch; `state` is donated.

        Returns:
          The new state and {"loss", "accuracy"}, means over the full batch, float32 scalars.
        """
        return self.run(state, self.load(X, y))


def make_step(
    way: Way,
    model: Model,
    optimizer: Any,
    devices: Sequence[jax.Device],
    *,
    batch_norm: BatchNorm = "share",
    loss: Callable[[jax.Array, jax.Array], jax.Array] = softmax_cross_entropy,
) -> Step:
    """Return a data-parallel training step.

    Args:
      way: one of `WAYS`.
      model: the network, from `model_of` or `model_of_function`.
      optimizer: any Optax optimizer, with any schedule.
      devices: where to run, all of this process; each holds the whole state.
      batch_norm: "share" normalizes each device's share by itself, as Gluon and PyTorch's DataParallel do,
        and averages running statistics; "whole" normalizes over the full batch, so that the result does not
        depend on the number of devices.
      loss: `loss(logits, labels)` gives each example's.

    Raises:
      JaxperfError: an unknown way or choice, no devices, or "manual" with batch_norm "whole" over several.
    """
    if way not in WAYS:
        raise JaxperfError(f"no way {way!r} to run a step; use {', '.join(WAYS)}")
    if batch_norm not in get_args(BatchNorm):
        raise JaxperfError(f"batch_norm {batch_norm!r} is neither 'share' nor 'whole'")
    if not devices:
        raise JaxperfError("no devices to run on; give at least 1")
    apply = _with_batch_norm(model, way, batch_norm, len(devices))

    def gradient(state: TrainState, X: jax.Array, y: jax.Array) -> Tree:
        """Give sums over a share's examples, so that the result does not depend on how the batch is cut."""

        def total(params: Tree) -> Any:
            logits, stats = apply(params, state.stats, X, train=True)
            value = loss(logits, y).sum()
            # The hits have the loss's dtype, because sums of one dtype can share one collective
            return value, (stats, value, (logits.argmax(-1) == y).sum(dtype=value.dtype))

        grads, (stats, value, hits) = jax.grad(total, has_aux=True)(state.params)
        # The shares' statistics are averaged with their sizes as weights
        return grads, jax.tree.map(lambda s: s * len(y), stats), value, hits

    def update(state: TrainState, sums: Tree, n: int) -> tuple[TrainState, dict[str, jax.Array]]:
        grads, stats, value, hits = jax.tree.map(lambda a: a / n, sums)
        changes, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), state.params, changes)
        return TrainState(params, stats, opt_state), {"loss": value, "accuracy": hits}

    if way == "manual":
        second = jax.jit(update, static_argnums=2, donate_argnums=0)
        programs = {"gradient": jax.jit(gradient), "update": second}
    else:
        programs = {"step": _one_program(way, gradient, update, tuple(devices))}
    return Step(way, tuple(devices), model, optimizer, programs)


def _with_batch_norm(model: Model, way: Way, batch_norm: BatchNorm, k: int) -> Callable[..., Any]:
    """Return the model's function, with BatchNorm over a share or the whole batch in this way's program."""
    if k == 1 or not jax.tree.leaves(model.stats) or (way == "jit") == (batch_norm == "whole"):
        return model.apply  # the program already sees exactly the examples to normalize over
    if way == "manual":
        raise JaxperfError(
            "batch_norm 'whole' needs sums in the middle of the network, and 'manual' has them at its end; "
            "use 'pmap', 'shard_map' or 'jit'"
        )
    if way != "jit":
        return partial(model.apply, axis_name=AXIS)

    def mapped_over_shares(params: Tree, stats: Tree, X: jax.Array, *, train: bool) -> tuple[jax.Array, Tree]:
        shares = X.reshape(k, -1, *X.shape[1:])
        logits, stats = jax.vmap(lambda x: model.apply(params, stats, x, train=train))(shares)
        return logits.reshape(len(X), -1), jax.tree.map(lambda s: s.mean(0), stats)

    return mapped_over_shares


def _one_program(way: Way, gradient: Any, update: Any, devices: tuple[jax.Device, ...]) -> Any:
    mesh = _mesh(devices)
    shares = 1 if way == "jit" else len(devices)  # among which the program's batch is divided

    def step(state: TrainState, X: jax.Array, y: jax.Array) -> Any:
        sums = gradient(state, X, y)
        return update(state, lax.psum(sums, AXIS) if shares > 1 else sums, shares * len(y))

    if way == "jit":
        return jax.jit(step, out_shardings=NamedSharding(mesh, P()), donate_argnums=0)
    if way == "shard_map":
        # Unchecked, so that the sums are only where we write them: with the check, `jax.grad` with respect to
        # what all devices share (the parameters) would sum over devices by itself
        specs: Any = {"in_specs": (P(), P(AXIS), P(AXIS)), "out_specs": P(), "check_vma": False}
        return jax.jit(jax.shard_map(step, mesh=mesh, **specs), donate_argnums=0)
    axes: Any = {"in_axes": (None, 0, 0), "out_axes": None, "axis_name": AXIS}
    return jax.pmap(step, devices=devices, donate_argnums=0, **axes)


def _mesh(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.array(devices), (AXIS,))


@jax.jit
def _copy(tree: Tree) -> Tree:
    return jax.tree.map(jnp.copy, tree)
