import signal
import threading
import time

import jax
import pytest
from late import FAR

from jaxperf.measure.stages import compile_lowered


class Waiting:
    """A lowered program whose compilation ends when a gate opens."""

    def __init__(self, gate):
        self.gate = gate

    def compile(self):
        self.gate.wait(FAR)
        return self


def test_all_are_compiled_at_the_same_time():
    meeting = threading.Barrier(3)  # breaks unless three wait at it together
    programs = [Waiting(meeting) for _ in range(3)]
    assert compile_lowered(programs) == programs and not meeting.broken
    assert compile_lowered([]) == []


def test_for_a_gpu_they_are_compiled_one_after_another(monkeypatch):
    running, most = 0, 0

    class Counted:
        def compile(self):
            nonlocal running, most
            running += 1
            most = max(most, running)
            time.sleep(0.05)  # another thread would begin meanwhile
            running -= 1
            return self

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    programs = [Counted() for _ in range(3)]
    assert compile_lowered(programs) == programs and most == 1


def test_ctrl_c_leaves_a_compilation_behind():
    gate = threading.Event()

    class Interrupted(Waiting):
        def compile(self):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return super().compile()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_lowered([Interrupted(gate)])
        assert not gate.is_set()
    finally:
        gate.set()
        signal.signal(signal.SIGINT, before)
