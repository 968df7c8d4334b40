"""Sections 8.4.1 to 8.4.3: the idea of data parallelism, the model, and the book's three helpers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.models import lenet, lenet_params
from jaxperf.parallel import allreduce, first_devices, get_params, split_and_load
from jaxperf.script import Story


def data_parallelism(story: Story) -> None:
    """Tell the idea, and show the network."""
    story.heading("8.4.1 Data parallelism")
    story.text(
        """Each of k devices holds a full copy of the parameters. A minibatch is split into k shares, and each
        device computes the gradient of the loss on its share. The sum of these gradients is the gradient of
        the whole minibatch. It is copied to every device, and each makes the same update, so the copies stay
        equal.""",
        """On a machine without GPUs the CPU can be split into several devices that share its cores. Such fake
        devices show that a program is right. They do not show how long it would take on real ones.""",
    )
    story.heading("8.4.2 The model")
    story.text(
        """LeNet is a function of images and a list of eight arrays. It runs on the device of its arguments,
        so the same function serves every device."""
    )
    story.code(lenet, lenet_params)
    count = sum(a.size for a in jax.eval_shape(lambda: lenet_params(jax.random.key(0))))
    story.fact("param_count", count, words="parameters of LeNet")


def synchronizing_data(story: Story) -> None:
    """Run the helpers on the book's numbers, on two devices if there are two."""
    story.heading("8.4.3 Synchronizing data among devices")
    story.text(
        """Three helpers are enough: copy the parameters to a device, sum arrays over devices, split a batch.
        In Gluon a parameter has a `.grad`, and `allreduce` overwrites it. JAX's arrays do not change:
        `jax.grad` returns the gradients, and `allreduce` returns the sums."""
    )
    story.code(get_params, allreduce, split_and_load)
    devices = (first_devices(story.devices) * 2)[:2]
    params = get_params(lenet_params(jax.random.key(0)), devices[0])
    data = [jax.device_put(jnp.ones((1, 2)) * (i + 1), d) for i, d in enumerate(devices)]
    batch = np.arange(24, dtype=np.float32).reshape(6, 4)
    summed, shards = allreduce(data), split_and_load(batch, devices)
    with story.output():
        print("before allreduce:", *(f"{np.asarray(a).tolist()} on {d}" for a, d in zip(data, devices)))
        print("after allreduce: ", *(f"{np.asarray(a).tolist()} on {d}" for a, d in zip(summed, devices)))
    with story.output(detail=True):
        print(f"b1 weight: {params[1]} on {devices[0]}")
        print("b1 grad:", jax.grad(lambda p: lenet(jnp.zeros((1, 28, 28, 1)), p).sum())(params)[1])
        for shard, device in zip(shards, devices):
            print(f"{shard} on {device}")
    whole = bool((np.concatenate([np.asarray(s) for s in shards]) == batch).all())
    right = whole and all((np.asarray(a) == 3).all() for a in summed) and [len(s) for s in shards] == [3, 3]
    story.claim(
        book="allreduce adds up what the devices hold, and gives every device the sum",
        holds=right,
        predicted="[1, 1] and [2, 2] become [3, 3] on both; six rows are split into three and three",
        right=right,
        observed=f"{[np.asarray(a).ravel().tolist() for a in summed]}; {[len(s) for s in shards]} rows",
        cannot="" if story.devices > 1 else "only one device here, which stood for both",
    )
