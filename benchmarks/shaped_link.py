"""Train in two network namespaces over a link of known bandwidth and delay: what does a step take?

Model: a step takes its compute, plus the bytes it sums over the bandwidth, plus the messages it waits for
times the delay. Only compute is measured, on the link as it is; all else is predicted, then measured.

XLA sums all arrays in one all-reduce, but Gloo takes one array after the other, each in two rounds (reduce,
then gather). In each round a process says that it is ready to receive before the other sends, so an array
takes four delays. Of an array of a single number only one process holds a part in each round; the other says
that it is ready while it still waits for the round before, so two delays are left.

The namespaces are two machines to the processes: each has its own address and host name. A thread hands every
packet over when the link would have. That needs root, `ip` and /dev/net/tun, but no `tc`, whose delay (netem)
not every kernel has.

    sudo python benchmarks/shaped_link.py
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import fcntl
import heapq
import itertools
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jaxperf import flags
from jaxperf.errors import JaxperfError
from jaxperf.process import child_environment, ended

WORKER = "--worker"
ADDRESSES = ("10.213.77.1", "10.213.77.2")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
DELAYS, DELAYS_OF_A_NUMBER = 4, 2  # that a sum over two processes waits for
# Whole arrays fit into what TCP sends before the first acknowledgement, so that its slow start, which depends
# on what was sent before, adds no delays: with Linux's defaults the same step waited for 36 to 63 of them.
WIDE = "echo 4096 8388608 8388608 | tee /proc/sys/net/ipv4/tcp_rmem > /proc/sys/net/ipv4/tcp_wmem"
WINDOWS = ("initcwnd", "1000", "initrwnd", "1000")
# In the namespace: the host's name gets the link's address, where Gloo then listens, and the command starts.
ENTER = 'mount --bind "$0" /etc/hosts && echo "$1" > /proc/sys/kernel/hostname && shift && exec "$@"'


@dataclass(frozen=True)
class Config:
    """How often, and over which links."""

    mbit_s: tuple[float, ...] = (200.0, 50.0)  # bandwidths to measure
    delay_ms: tuple[float, ...] = (0.0, 5.0, 20.0)  # one-way delays to measure
    steps: int = 16  # training steps for each link; the median counts


class Link:
    """A cable between two namespaces; `bit_s` and `delay_s` may change at any time.

    Attributes:
      carried: bytes of packets so far, both directions together.
    """

    def __init__(self, names: tuple[str, str]) -> None:
        self.bit_s, self.delay_s, self.carried = float("inf"), 0.0, 0
        self._ends = [_tunnel(name) for name in names]
        self._closed = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Unplug it."""
        self._closed = True
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _carry(self) -> None:
        """Hand each packet over when its bits have left one after the other and the delay is over."""
        free = dict.fromkeys(self._ends, 0.0)
        waiting: list[tuple[float, int, int, bytes]] = []
        count = itertools.count()
        while not self._closed:
            patience = max(0.0, waiting[0][0] - time.perf_counter()) if waiting else 0.05
            for end in select.select(self._ends, [], [], min(patience, 0.05))[0]:
                with contextlib.suppress(OSError):  # the interface is down
                    packet = os.read(end, 1 << 16)
                    left = max(time.perf_counter(), free[end]) + 8 * len(packet) / self.bit_s
                    free[end], self.carried = left, self.carried + len(packet)
                    other = self._ends[1 - self._ends.index(end)]
                    heapq.heappush(waiting, (left + self.delay_s, next(count), other, packet))
            while waiting and waiting[0][0] <= time.perf_counter():
                _, _, other, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):
                    os.write(other, packet)


def _tunnel(name: str) -> int:
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return end


def why_not() -> str:
    """Return why namespaces cannot be linked here; "" if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if missing := [word for word in ("ip", "unshare", "mount") if not shutil.which(word)]:
        return f"no program {missing[0]} here; install iproute2 and util-linux"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "no /dev/net/tun here; the kernel or the container lacks it"
    probe = subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True)
    return f"namespaces are not permitted here: {probe.stderr.strip()}" if probe.returncode else ""


def ip(*arguments: str) -> None:
    """Run `ip`.

    Raises:
      JaxperfError: it refuses.
    """
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise JaxperfError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


@contextlib.contextmanager
def linked_namespaces() -> Iterator[tuple[Link, tuple[str, str]]]:
    """Yield two namespaces with an address each and a link between; gone when the block ends.

    Raises:
      JaxperfError: they are not possible here.
    """
    if why := why_not():
        raise JaxperfError(why)
    pid = os.getpid()
    spaces, names = (f"jaxperf{pid}a", f"jaxperf{pid}b"), (f"jp{pid}a", f"jp{pid}b")
    with contextlib.ExitStack() as stack:
        link = Link(names)
        stack.callback(link.close)
        for i, (space, name) in enumerate(zip(spaces, names)):
            ip("netns", "add", space)
            stack.callback(ip, "netns", "del", space)
            ip("link", "set", name, "netns", space)
            ip("-n", space, "addr", "add", ADDRESSES[i], "peer", ADDRESSES[1 - i], "dev", name)
            for each in ("lo", name):
                ip("-n", space, "link", "set", each, "up")
            ip("netns", "exec", space, "sh", "-c", WIDE)
            ip("-n", space, "route", "change", ADDRESSES[1 - i], "dev", name, *WINDOWS)
        yield link, spaces


class Pair:
    """The two processes of a training, one in each namespace; both do what each question says."""

    def __init__(self, spaces: tuple[str, str], folder: Path) -> None:
        hosts = folder / "hosts"
        names = [f"127.0.0.1 localhost\n{a} machine{i}\n" for i, a in enumerate(ADDRESSES)]
        hosts.write_text("".join(names))
        self._processes = [self._start(i, space, hosts, folder) for i, space in enumerate(spaces)]

    def _start(self, number: int, space: str, hosts: Path, folder: Path) -> subprocess.Popen[str]:
        address = f"{ADDRESSES[0]}:8476"
        variables = {"JAX_COORDINATOR_ADDRESS": address, "JAX_COORDINATOR_BIND_ADDRESS": address}
        variables |= {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
        enter = ["ip", "netns", "exec", space, "unshare", "--mount", "--uts", "sh", "-c", ENTER]
        with (folder / f"process-{number}.log").open("w") as log:
            return subprocess.Popen(
                [*enter, str(hosts), f"machine{number}", sys.executable, __file__, WORKER],
                env={**child_environment(), **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, what: str, count: int) -> Any:
        """Have both do something `count` times, and return what process 0 says.

        Raises:
          JaxperfError: one of them has failed.
        """
        answers = []
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{what} {count}\n")
                process.stdin.flush()
        for process in self._processes:
            assert process.stdout is not None
            line = next((line for line in process.stdout if line.startswith("{")), "")
            if not line:
                raise JaxperfError("a process of the training has failed")
            answers.append(json.loads(line))
        return answers[0]["value"]

    def close(self) -> None:
        """End both."""
        for process in self._processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def work() -> None:
    """Be one of the processes: make LeNet's step as often as each line of standard input says."""
    import hashlib

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jaxperf.distributed import join
    from jaxperf.measure import block
    from jaxperf.models import lenet, lenet_params
    from jaxperf.parallel import softmax_cross_entropy

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1 if "JAX_PROCESS_ID" in os.environ else 2)
    join()
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("devices"))

    def put(array: Any, sharding: NamedSharding) -> jax.Array:
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda part: np.array(array[part]))

    def update(params: Any, X: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits = lenet(X.astype(jnp.float32) / 255, params)
            value = softmax_cross_entropy(logits, y).sum()
            return value, (value, (logits.argmax(-1) == y).sum(dtype=value.dtype))

        grads, metrics = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.2 * g / len(y), params, grads), metrics

    step = jax.jit(update, donate_argnums=0, out_shardings=everywhere)
    rng = np.random.default_rng(0)
    X = put(rng.integers(0, 256, (32, 28, 28, 1), np.uint8), split)
    y = put(rng.integers(0, 10, 32, np.int32), split)
    params = [put(p, everywhere) for p in lenet_params(jax.random.key(0), scale=0.05)]
    for line in sys.stdin:
        what, count = line.split()
        seconds = []
        for _ in range(int(count) if what != "digest" else 0):
            began = time.perf_counter()
            params, _ = block(step(params, X, y))
            seconds.append(time.perf_counter() - began)
        leaves = [np.asarray(a) for a in params]
        digest = hashlib.sha256(b"".join(a.tobytes() for a in leaves)).hexdigest()
        numbers = 2 + sum(a.size == 1 for a in leaves)  # the loss, the hits
        value: Any = {"digest": digest, "bytes": sum(a.nbytes for a in leaves), "arrays": len(leaves) + 2}
        value["delays"] = DELAYS * (value["arrays"] - numbers) + DELAYS_OF_A_NUMBER * numbers
        print(json.dumps({"value": value if what == "digest" else seconds}), flush=True)


def in_one_process(steps: int) -> str:
    """Return the digest of the parameters that one process with two devices reaches."""
    done = subprocess.run(
        [sys.executable, __file__, WORKER], input=f"step {steps}\ndigest 0\n", env=child_environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return str(json.loads(done.stdout.splitlines()[-1])["value"]["digest"])


def main(config: Config) -> int:
    """Check equality over the link as it is, find compute, then predict and measure.

    Raises:
      JaxperfError: no namespaces here, or a process failed, whose log is printed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        linked_namespaces() as (link, spaces),
    ):
        pair = Pair(spaces, Path(folder))
        try:
            measure(config, link, pair)
        except JaxperfError:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"{log.name}:\n{log.read_text()[-2000:]}", file=sys.stderr)
            raise
        finally:
            pair.close()
    return 0


def measure(config: Config, link: Link, pair: Pair) -> None:
    """Tell all of it, line by line."""
    pair.ask("step", config.steps)
    answer = pair.ask("digest", 0)
    same = answer["digest"] == in_one_process(config.steps)
    print(
        f"{config.steps} steps over two addresses, and in one process: {'same bits' if same else 'UNEQUAL'}"
    )
    print(
        f"a step sums {answer['arrays']} arrays, {answer['bytes']:,} bytes in all, and waits for "
        f"{answer['delays']} delays"
    )
    print(
        "  Mbit/s  delay ms  compute ms  predicted ms  measured ms  measured / predicted  bytes on the link"
    )
    for mbit_s, delay_ms in itertools.product(config.mbit_s, config.delay_ms):
        link.bit_s, link.delay_s = float("inf"), 0.0
        compute_s = median(pair.ask("step", 2 * config.steps))
        link.bit_s, link.delay_s = mbit_s * 1e6, delay_ms * 1e-3
        predicted_s = compute_s + 8 * answer["bytes"] / link.bit_s + answer["delays"] * link.delay_s
        before = link.carried
        measured_s = median(pair.ask("step", config.steps))
        carried = (link.carried - before) / config.steps
        print(
            f"{mbit_s:8.0f}{delay_ms:10.1f}{1e3 * compute_s:12.1f}{1e3 * predicted_s:14.1f}"
            f"{1e3 * measured_s:13.1f}{measured_s / predicted_s:22.2f}{carried:19,.0f}"
        )


if __name__ == "__main__":
    if sys.argv[1:] == [WORKER]:
        work()
    else:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        # after a signal the namespaces go too
        raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
