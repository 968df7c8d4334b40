"""The folder of a run's checkpoints: one run at a time, and how a run ends on a signal."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import jax
from filelock import FileLock, Timeout

from jaxperf.errors import JaxperfError
from jaxperf.parallel.multihost import ask_all_to_stop, can_agree_to_stop, gather_numbers, stop_after
from jaxperf.process import SAME_S
from jaxperf.train.checkpoint import PART, Checkpoints, Policy

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class CheckpointFolder:
    """The checkpoints of a run, with one folder for each of its trainings.

    While it is open, SIGTERM and SIGHUP end the running training after its current step, and its state is
    saved. The exit status is 128 plus the signal's number, so 143 after SIGTERM. With several processes, a
    signal to one of them ends all after the same step, which they agree on through JAX's preemption service
    (`jax.distributed.initialize` starts it). The same signal again within `SAME_S` seconds counts as the same
    request; a later one ends the process at once.

        with CheckpointFolder(Path("saved"), Policy(every_steps=50), resume=True) as folder:
            for epoch, state in train(step, data, ..., checkpoints=folder.of("lenet")):
                print(epoch.line())

    Args:
      path: the folder; made if it is missing.
      policy: when to save, and how many to keep.
      resume: go on from the newest checkpoints; trainings without one start at the beginning.

    Raises (on entering):
      JaxperfError: another run has it open, it cannot be written, or it holds checkpoints and `resume` is
        false; with several processes, no preemption service, or a policy by the clock.
    """

    def __init__(self, path: Path, policy: Policy | None = None, *, resume: bool = False) -> None:
        self.path, self.policy, self.resume = Path(path).absolute(), policy or Policy(), resume
        self.signal = 0  # the signal received, or 0
        self._second: threading.Timer | None = None  # starts when the signal arrives
        self._calls, self._asked = 0, False
        self._lock: FileLock | None = None
        self._open: list[Checkpoints] = []

    def __enter__(self) -> CheckpointFolder:
        if jax.process_count() > 1 and self.policy.every_s:
            raise JaxperfError("several processes do not share a clock; use --every-steps, not --every-s")
        if jax.process_count() > 1 and not can_agree_to_stop():
            raise JaxperfError(
                "several processes that save need JAX's preemption service, to stop after the same step; set "
                "JAX_ENABLE_PREEMPTION_SERVICE=1"
            )
        if jax.process_index() == 0:
            self._lock = _locked(self.path, resume=self.resume)
            self._remove_parts()  # of a run that was killed
        log = logging.getLogger("absl")  # where Orbax logs tracebacks of errors that we report in one line
        self._level = log.level
        log.setLevel(logging.CRITICAL)
        main_thread = threading.current_thread() is threading.main_thread()
        self._before = {s: signal.signal(s, self._receive) for s in ENDING if main_thread and not _ignored(s)}
        return self

    def of(self, name: str, **settings: Any) -> Checkpoints:
        """Return the checkpoints of a training, in a folder of this name (blanks become hyphens).

        `settings` are what its optimizer and model do not show, such as the learning rate: plain values that
        must be the same when the training is resumed.
        """
        folder = self.path / name.replace(",", "").replace(" ", "-")
        checkpoints = Checkpoints(folder, self.policy, resume=self.resume, stop=self.stop, settings=settings)
        self._open.append(checkpoints)
        return checkpoints

    def stop(self) -> int:
        """Return the signal to end with after the current step, or 0; the same in all of several processes.

        All processes call it after each step and after each epoch. It counts calls, not steps: steps start at
        1 again with the next training, which might never reach a step that was agreed on.
        """
        if jax.process_count() == 1:
            return self.signal
        if self.signal and not self._asked:
            ask_all_to_stop(self.signal)
            self._asked = True
        self._calls += 1
        return stop_after(self._calls)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind not in (None, SystemExit) and jax.process_count() > 1:
            return  # end at once: the others may be gone, and this process would wait for them
        try:
            for checkpoints in self._open:
                checkpoints.close()
            if kind is None and jax.process_count() > 1:  # one of them got it after the last step
                [self.signal] = max(gather_numbers([self.signal]))
        finally:
            if self._second:
                self._second.cancel()
            if self._lock:
                self._remove_parts()  # Orbax's other threads may continue to write after an error in one
            for number, handler in self._before.items():
                signal.signal(number, handler)
            logging.getLogger("absl").setLevel(self._level)
            if self._lock:
                self._lock.release()
        if self.signal and kind is not SystemExit:  # it came after the last step
            raise SystemExit(128 + self.signal)

    def _remove_parts(self) -> None:
        for part in self.path.glob(f"*/step-*{PART}"):
            if not part.parent.is_symlink():  # to a folder that belongs to somebody else
                shutil.rmtree(part, ignore_errors=True)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Keep the first signal for `stop`; after `SAME_S`, the system handles the next and ends us."""
        if not self.signal:
            self.signal = number
            self._second = threading.Timer(SAME_S, self._leave_to_system)
            self._second.daemon = True
            self._second.start()

    def _leave_to_system(self) -> None:
        # Python sees a signal only after a C++ call ends, maybe long after it came, so its handler could not
        # distinguish a late signal from an early one. `signal.signal` works only on the main thread.
        for number in self._before:
            ctypes.pythonapi.PyOS_setsig(int(number), None)  # SIG_DFL


def _ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN  # as after `nohup`


def _locked(path: Path, *, resume: bool) -> FileLock:
    """Return the folder's lock, held; the kernel releases it when this process ends, for whatever reason."""
    lock, holder = FileLock(path / ".lock"), path / ".process"
    with contextlib.ExitStack() as on_error:
        try:
            path.mkdir(parents=True, exist_ok=True)
            on_error.enter_context(lock.acquire(blocking=False))
            if not resume and any(path.glob("*/step-*")):
                raise JaxperfError(f"{path} holds checkpoints; add --resume to go on, or give another folder")
            holder.write_text(str(os.getpid()), encoding="utf-8")
        except Timeout:
            process = holder.read_text(encoding="utf-8") if holder.exists() else "of unknown number"
            raise JaxperfError(
                f"another run (process {process}) saves to {path}; give another folder"
            ) from None
        except OSError as e:
            raise JaxperfError(
                f"cannot save checkpoints to {path}: {e.strerror}; give another folder"
            ) from None
        on_error.pop_all()
    return lock
