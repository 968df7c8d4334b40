import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import children
import pytest
import several
from cases import cases

from jaxperf import cli
from jaxperf.process import child_environment
from jaxperf.result import Grid
from jaxperf.result.store import load_result
from jaxperf.watch.observe import stuck


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / "train.py"
    path.write_text(
        "import pickle, signal, sys\n"
        "import jax\n"
        "class Pickled: pass\n"
        "pickle.loads(pickle.dumps(Pickled()))\n"
        "print('words', sys.argv, __name__, __file__)\n"
        "def fail():\n"
        "    raise ValueError('no such batch')\n"
        "print(float(jax.jit(lambda x: x * 2)(1.5)))\n"
        "match sys.argv[1]:\n"
        "    case 'fail': fail()\n"
        "    case 'stop': signal.raise_signal(signal.SIGINT)\n"
        "    case 'end': signal.raise_signal(signal.SIGTERM)\n"
        "    case 'exit': sys.exit(7)\n"
        "    case 'words': sys.exit('too bad')\n"
    )
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize(("word", "status", "message"), [
    ("fail", 1, "failed with ValueError"), ("stop", 130, "interrupted"),
    ("end", 143, "until SIGTERM ended it"), ("exit", 7, ""), ("words", 1, "too bad"), ("well", 0, ""),
])  # fmt: skip
def test_the_program_ends_as_it_would_alone_and_is_reported(script, word, status, message, capfd):
    assert cli.main(["watch", "--no-profile", "train.py", word, "--lr", "0.1"]) == status
    out, err = capfd.readouterr()
    assert out.splitlines() == [f"words {['train.py', word, '--lr', '0.1']} __main__ {script}", "3.0"]
    assert "watch: train.py" in err and "Shares of the time" in err and message in err
    assert ("Traceback" in err) == (word == "fail")
    if word == "fail":
        before, _, _ = err.partition("watch: train.py")
        assert "ValueError: no such batch" in before and "jaxperf/watch/" not in before
        assert 'train.py", line 10, in <module>' in before


def test_a_mistake_is_one_line(tmp_path, capfd):
    for arguments, message in {
        (): "no program to watch",
        ("-m", "no_such_module"): "No module named no_such_module; give",
        ("-m", "no_such.module"): "finding module specification for 'no_such.module'",
        ("-m", "wsgiref"): "No module named wsgiref.__main__; 'wsgiref' is a package",
        (str(tmp_path / "none.py"),): "cannot read the script",
        (str(tmp_path),): "cannot read the script",
    }.items():
        assert cli.main(["watch", *arguments]) == 2
        err = capfd.readouterr().err
        assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(("moves", "judged"), [(False, [signal.SIGINT]), (True, [])])
def test_a_second_ctrl_c_counts_if_the_first_had_no_effect(moves, judged, monkeypatch):
    guard, positions, judgments = stuck.Guard(print), iter([(1, 2), (1, 3 if moves else 2)]), []
    monkeypatch.setattr(stuck, "_position", lambda: next(positions))
    monkeypatch.setattr(guard, "_judge", lambda number, at: judgments.append(number))
    guard._hear(signal.SIGINT)
    guard._hear(signal.SIGINT)
    for thread in threading.enumerate():
        if thread.daemon and thread.name.endswith("(<lambda>)"):
            thread.join()
    assert judgments == judged


# in a process of its own


def start(folder, *arguments):
    return children.start("-m", "jaxperf", "watch", *arguments, folder=folder)


def run(folder, *arguments, **variables):
    done = children.run("-m", "jaxperf", *arguments, folder=folder, **variables)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_has_no_report_and_nothing_of_the_watch_and_listeners_may_be_removed(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, signal, sys, warnings\n"
        "if not (child := os.fork()):\n"
        "    sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "import jax, numpy as np\n"
        "import jax.numpy as jnp\n"
        "warnings.simplefilter('ignore')\n"
        "print(jax.jit(lambda x: x * 59)(1.0))\n"
        "jax.monitoring.clear_event_listeners()\n"
        "print(jax.jit(lambda x: x * 61)(1.0))\n"
        "if not (child := os.fork()):\n"
        "    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]\n"
        "    print(handlers, sys.getswitchinterval(), signal.set_wakeup_fd(-1))\n"
        "    print(sys.unraisablehook is sys.__unraisablehook__)\n"
        "    print([hasattr(f, '__wrapped__') for f in (np.asarray, jnp.array, jax.device_get)])\n"
        "    print(jax.config.jax_explain_cache_misses, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    alone = children.run("train.py", folder=tmp_path)
    status, out, err = run(tmp_path, "watch", "train.py")
    assert (status, out) == (alone.returncode, alone.stdout) and err.count("watch: train.py") == 1
    assert out.startswith("7\n59.0\n61.0\n") and out.endswith("-15\n")
    assert "Traced and compiled: 2 times" in err and "train.py:10" in err and "note: lost" not in err


@pytest.mark.parametrize(("times", "status", "reports"), [(1, 0, 1), (2, 143, 0)])
def test_the_first_sigterm_during_the_report_waits_for_it(times, status, reports, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, signal\n"
        "from jaxperf.watch.report import text\n"
        "make = text.make_result\n"
        "def interrupted(*args, **kwargs):\n"
        f"    for _ in range({times}):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return make(*args, **kwargs)\n"
        "text.make_result = interrupted\n"
    )
    with start(tmp_path, "train.py") as process:
        _, err = process.communicate()
    assert (process.returncode, err.count("watch: train.py")) == (status, reports), err


@pytest.mark.thorough
def test_ctrl_c_ends_a_real_process_in_the_middle_of_a_window_with_one_report(tmp_path):
    (tmp_path / "train.py").write_text(
        "import jax\n"
        "from jaxperf.watch import session\n"
        "watch, said = session._open_watch, []\n"
        "step = jax.jit(lambda x: x @ x / 300)\n"
        "x = jax.numpy.ones((300, 300))\n"
        "try:\n"
        "    for turn in range(10**9):\n"
        "        x = step(x)\n"
        "        lost = float(x[0, 0])\n"
        "        if not said and len(watch.log.samples) > 50 and watch.profiler._session:\n"  # in a window
        "            said.append(print('training', flush=True))\n"
        "finally:\n"
        "    print('put away', flush=True)\n"
    )
    with start(tmp_path, "train.py") as process:
        assert process.stdout and process.stdout.readline() == "training\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "put away\n"), err
    assert err.count("watch: train.py") == 1 and "interrupted" in err and "Traceback" not in err
    assert "lost = float(x[0, 0])" in err


@pytest.mark.thorough
def test_a_program_that_does_not_answer_sigterm_ends_with_its_line_and_report(tmp_path):
    (tmp_path / "train.py").write_text(
        "import signal, sys, threading, time\n"
        "import jax\n"
        "x, main = jax.numpy.ones(3), threading.get_ident()\n"
        "def say_so():\n"
        "    while sys._current_frames()[main].f_lineno != 13:\n"
        "        time.sleep(0.1)\n"
        "    time.sleep(1)\n"
        "    print('hangs', flush=True)\n"
        "lock = threading.Lock()\n"
        "lock.acquire()\n"
        "threading.Thread(target=say_so, daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"  # another thread gets it
        "lock.acquire()\n"
    )
    with start(tmp_path, "train.py") as process:
        assert process.stdout and process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 143
    assert "does not answer SIGTERM; it is at " in err and "train.py:13: lock.acquire()" in err
    assert err.count("watch: train.py") == 1 and "until SIGTERM ended it" in err


UNUSUAL = """
import asyncio, os, pickle, signal, sys, threading
import jax, jax.numpy as jnp
import numpy as np

class Tee:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        self.stream.write(text)
    def flush(self):
        self.stream.flush()

class Closed:
    def write(self, text): pass
    def flush(self): raise ValueError("I/O operation on closed file.")

def work():
    print(float(jax.jit(lambda x: x * 61)(1.0)))

async def cancelled():
    signal.raise_signal(signal.SIGINT)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled")
        raise

for function in (np.asarray, np.array, jnp.asarray, jax.device_put, jax.device_get):
    assert pickle.loads(pickle.dumps(function)) is function
__builtins__.profile = lambda function: function
assert __loader__.get_source("__main__")
threading.Thread(target=work).start()
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
try:
    asyncio.run(cancelled())
except KeyboardInterrupt:
    print("interrupted")
os.mkdir("elsewhere")
os.chdir("elsewhere")
print("done")
sys.stdout, sys.stderr = (Closed(), Tee(sys.stderr)) if sys.argv[1:] else (Tee(sys.stdout), Closed())
"""


@pytest.mark.parametrize("arguments", [(), ("closed",)])
def test_a_program_may_replace_its_streams_await_threads_and_pickle_functions(arguments, tmp_path):
    (tmp_path / "train.py").write_text(UNUSUAL)
    status, out, err = run(tmp_path, "watch", "--json", "watch.json", "train.py", *arguments)
    assert out.splitlines() == ["61.0", "cancelled", "interrupted", "done"], err
    assert status == 120, err  # Python's own, where a stream cannot be flushed at the end
    assert err.count("watch: train.py") == 1
    assert load_result(tmp_path / "watch.json").title == "watch: train.py"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_under_a_stream_ends_the_program_as_it_would_alone(tmp_path):
    (tmp_path / "program.py").write_text("print('lost')\n")
    environment = {name: v for name, v in child_environment().items() if name != "PYTHONUNBUFFERED"}
    for full in ("stdout", "stderr"):
        statuses = []
        for watched in ([], ["-m", "jaxperf", "watch"]):
            with Path("/dev/full").open("w") as stream:
                streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} | {full: stream}
                command = [sys.executable, *watched, "program.py"]
                done = subprocess.run(command, cwd=tmp_path, env=environment, **streams)
            statuses.append(done.returncode)
        assert statuses == ([120, 120] if full == "stdout" else [0, 0])
        if full == "stdout":
            *report, last = done.stderr.decode().splitlines()
            assert last.startswith("error: cannot write the output of the program: No space left")
            assert "program.py" in report[1]


def test_a_program_without_standard_output_runs_as_it_would_alone(tmp_path):
    text = "import sys\nprint('lost')\nopen('seen', 'w').write(repr(sys.stdout))\nsys.exit(5)\n"
    (tmp_path / "program.py").write_text(text)
    command = ["sh", "-c", 'exec "$0" "$@" >&-', sys.executable, "-m", "jaxperf", "watch", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=child_environment(), stderr=subprocess.PIPE, text=True)
    assert (done.returncode, (tmp_path / "seen").read_text()) == (5, "None")
    assert "watch: program.py" in done.stderr and "error" not in done.stderr


def test_a_program_that_closes_its_streams_ends_as_it_would_alone(tmp_path):
    (tmp_path / "train.py").write_text("import os, sys\nsys.stdout.close()\nos.close(2)\n")
    assert run(tmp_path, "watch", "--json", "watch.json", "train.py") == (0, "", "")
    assert load_result(tmp_path / "watch.json").title == "watch: train.py"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments", cases([(("train.py",),), (("-m", "train"),)], quick=lambda arguments: len(arguments) == 1)
)
def test_a_process_of_its_own_sets_jax_up_before_jax_is_imported(arguments, tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules\n"
        "os.environ['JAX_NUM_CPU_DEVICES'] = '2'\n"
        "import jax, time\n"
        "new = bytearray(b'x') * 50_000_000; time.sleep(0.2)  # new memory makes a watch list arrays\n"
        "jax.config.update('jax_num_cpu_devices', 3)  # refused once a backend runs\n"
        "print(jax.device_count(), jax.jit(lambda x: x + 1)(1).item())\n"
    )
    status, out, err = run(tmp_path, "watch", *arguments)
    assert (status, out) == (0, "3 2\n"), err
    assert "train.py:7" in err and "item" in err


def test_a_package_is_watched_while_it_is_imported_and_may_look_for_modules_itself(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import jax\nprint(jax.jit(lambda x: x + 7)(1.0))\n")
    (tmp_path / "package" / "train.py").write_text("import runpy\nrunpy.run_module('nothing_41')\n")
    status, out, err = run(tmp_path, "watch", "--no-profile", "-m", "package.train")
    assert (status, out) == (1, "8.0\n")
    assert "ImportError: No module named nothing_41" in err.partition("watch: package.train")[0]
    assert "package/__init__.py:2" in err and "until it failed with ImportError" in err


@pytest.mark.thorough
def test_a_program_for_which_jax_cannot_start_is_reported_too(tmp_path):
    (tmp_path / "train.py").write_text("import jax\njax.numpy.ones(3)\n")
    status, _, err = run(tmp_path, "watch", "train.py", JAX_PLATFORMS="no_such_platform")
    assert status == 1 and "no_such_platform" in err.partition("watch: train.py")[0]
    assert "watch: train.py" in err and "until it failed with RuntimeError" in err


@pytest.mark.thorough
def test_a_thread_that_is_left_is_watched_until_it_ends(tmp_path):
    (tmp_path / "train.py").write_text(
        "import threading, time\n"
        "import jax\n"
        "def train():\n"
        "    time.sleep(1)\n"
        "    print(float(jax.jit(lambda x: x * 3)(2.0)))\n"
        "threading.Thread(target=train).start()\n"
        "print('main is done')\n"
    )
    _, out, err = run(tmp_path, "watch", "train.py")
    assert out == "main is done\n6.0\n" and "train.py:5" in err and "other threads" not in err


@pytest.mark.thorough
def test_pytest_finds_no_plugin_imported_already(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    options = ("--no-profile", "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "test_a.py")
    status, out, _ = run(tmp_path, "watch", *options)
    assert status == 0 and "1 passed" in out and "warning" not in out


TOGETHER = """
import os
import jax
from jax.experimental import multihost_utils
names = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
address, count, number = (os.environ["JAX_" + name] for name in names)
jax.distributed.initialize(address, int(count), int(number))
multihost_utils.sync_global_devices("all here")
print("process", jax.process_index(), jax.jit(lambda x: x + 1)(1).item())
multihost_utils.sync_global_devices("all done")
jax.distributed.shutdown()
"""


@pytest.mark.thorough
def test_of_several_processes_the_first_one_prints_and_each_keeps_its_report(tmp_path):
    (tmp_path / "train.py").write_text(TOGETHER)
    command = [sys.executable, "-m", "jaxperf", "watch", "--json", "watch.json", "train.py"]
    for i, (status, out, err) in enumerate(several.run(command, folder=tmp_path)):
        assert status == 0, out + err
        assert f"process {i} 2" in out
        assert ("watch: train.py" in out + err) == (i == 0)
    for name in ("watch.json", "watch-1.json"):
        grids = load_result(tmp_path / name).of(Grid)
        (waits,) = (grid for grid in grids if grid.title.startswith("Where the front end"))
        assert any(row[0] == "item" and "train.py:9" in row[5] for row in waits.rows)
