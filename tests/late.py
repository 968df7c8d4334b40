"""Results that are late for certain, for tests of what waits and what does not."""

import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.measure import timing

FAR = 600.0  # seconds after which something that should have happened never will


class Late:
    """Programs on `device` that are still at work when their call returns.

    They wait until `gate` opens, fail if `fails` says so, and do `work`, all in a callback. A program that
    begins with a callback runs it immediately, in the caller's thread; behind a product that is not done yet
    it is queued, as work on a real device is. On a loaded machine the product, 5 ms of work, may be done
    before the callback's program is called. The callback then finds itself in the caller's thread and does
    nothing, and both are called again.
    """

    def __init__(self, work=lambda: None, device=None):
        self.gate = threading.Event()
        self.fails = False
        self._work = work
        self._caller = 0
        self._early = False
        self._x = jax.device_put(jnp.full((300, 300), 1e-3), device or jax.devices("cpu")[0])
        self._busy = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, y: jnp.tanh(y @ x), x)[0, 0])
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        self._answer = jax.jit(lambda y: jax.pure_callback(self._done, scalar, y))
        self._remark = jax.jit(lambda y: jax.debug.callback(self._done, y))
        for program in (self._answer, self._remark):  # compiled now, and does nothing: the product is done
            self._caller = threading.get_ident()
            program(self._busy(self._x).block_until_ready())

    def _done(self, _):
        if threading.get_ident() == self._caller:
            self._early = True
            return np.float32(0)
        self.gate.wait(FAR)
        if self.fails:
            raise ValueError("the late program failed")
        self._work()
        return np.float32(1)

    def _begin(self, program):
        for _ in range(1000):
            self._caller, self._early = threading.get_ident(), False
            out = program(self._busy(self._x))
            if not self._early:
                return out
        raise AssertionError("no program was late")

    def array(self):
        return self._begin(self._answer)

    def nothing(self):
        self._begin(self._remark)

    def held(self, monkeypatch):
        """Return a function whose arrays, but for the first, are there once `probe` has looked at them."""
        calls, pending = itertools.count(), timing.pending

        def look(tree):
            unfinished = pending(tree)
            self.gate.set()
            return unfinished

        def call():
            if next(calls):
                self.gate.clear()
            return self.array()

        self.gate.set()
        monkeypatch.setattr(timing, "pending", look)
        return call
