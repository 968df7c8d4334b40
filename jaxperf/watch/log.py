"""The log of a watch: events with times on one clock, `time.perf_counter`.

Instruments (`observe/`) write it while the program runs, each behind a guard of its own. The rules and the
report read it, and nothing else, so an event goes from its hook through this file to its finding.
"""

import functools
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from jaxperf.result.intervals import Interval, total_length
from jaxperf.retraces import Change, argument_changes
from jaxperf.watch.guard import Losses
from jaxperf.watch.observe.frame_arguments import Placement
from jaxperf.watch.observe.source_location import NOWHERE, Place

if TYPE_CHECKING:
    from jaxperf.hlo import Instruction
    from jaxperf.watch.observe.executables import Facts
    from jaxperf.watch.source.call_sites import CallSite

NAMES_CAUSES = (0, 8, 2)  # the first JAX version that says enough for findings
TRACE, LOWER, COMPILE = "trace", "lower", "compile"  # stages of `Compiled`
# kinds of `StackSample`
DATA, EAGER, DISPATCH, NUMPY, PYTHON = "data", "eager", "dispatch", "numpy", "python"
CALLBACK = "callback"  # the reader's function, called by JAX
WRITE = "write"  # a checkpoint, most likely
BETWEEN = "between"  # Python in a loop of steps; only the analysis knows it
IMPORT = "import"
# in the values of parameters; an object's class is behind its file and a colon
LIST_OF, ARRAY_OF, OBJECT_OF = "list of length ", "array of length ", "object of "
SETTINGS = "dictionary of settings"  # with numbers, flags or texts of Python


@dataclass
class Compiled:
    name: str  # of the program, which usually is the function's
    at: Place  # the line of the reader's code whose call triggered it
    stages: dict[str, Interval] = field(default_factory=dict)  # start and end of each stage
    explained: bool = False  # whether JAX explained the trace, which it does for the reader's functions only
    defined: str = ""  # file and line of the function; "" if JAX did not say
    changes: tuple[Change, ...] = ()  # why JAX traced it again; empty for a new function object
    # of the call's arguments, by name: an array's type, or another value's description
    signature: dict[str, str] = field(default_factory=dict)
    weak: frozenset[str] = frozenset()  # the arrays whose type is weak, as that of a Python number is
    placements: dict[str, Placement] = field(default_factory=dict)  # devices and sharding of the arrays
    host: dict[str, int] = field(default_factory=dict)  # bytes of the NumPy arrays
    moved: dict[str, int] = field(default_factory=dict)  # bytes of arrays on other devices
    # of the function: its closure variables and default values, and types of the arrays that it refers to
    closure: dict[str, str] = field(default_factory=dict)
    refers_to: dict[str, str] = field(default_factory=dict)
    # what objects among the arguments, or captured by a new function, store, by name
    fields: dict[str, str] = field(default_factory=dict)
    label: str = ""  # the function's name if the program has another one, as under `pmap`
    owner: str = ""  # the library whose own function it is, such as "optax"; "" for all others
    callers: tuple[Place, ...] = ()  # the reader's lines on the stack above `at`, the innermost first
    under: Place = NOWHERE  # the one of them that calls what `vmap` or `grad` made of a function around `at`
    derived: bool = False  # whether `vmap`, `grad` or the like called it
    through: str = ""  # the library that the reader called, such as "flax" for `nnx.jit`
    cleared: Place | None = None  # the line whose `jax.clear_caches` caused this trace
    inner: Place = NOWHERE  # the innermost line outside JAX, perhaps that of a library
    cache: str = ""  # what JAX's compile cache on disk did: "hit", "miss", or "" without one
    cache_note: str = ""  # why JAX does not keep the program there
    thread: int = 0  # that compiled it
    facts: "Facts | None" = None  # the program itself, where the compile report reads it
    used_s: dict[str, float] = field(default_factory=dict)  # processor time of the process in each stage

    @property
    def called(self) -> str:
        return self.label or self.name

    @property
    def program(self) -> str:
        return canonical_name(self.name)

    @property
    def arrays(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, text) for name, text in self.signature.items() if "[" in text)

    @property
    def numbers(self) -> list[str]:
        """The other arguments, as texts: numbers, flags and what else is no array."""
        return [text for text in self.signature.values() if "[" not in text]

    @property
    def host_bytes(self) -> int:
        return sum(self.host.values())

    @property
    def total_s(self) -> float:
        return total_length(self.stages.values())

    def seconds(self, stage: str) -> float:
        start, end = self.stages.get(stage, (0.0, 0.0))
        return end - start


class Wait(NamedTuple):
    """One call that waited for a device, and copied `nbytes` to the host: 0 of a number just read."""

    kind: str
    at: Place
    start: float
    end: float
    nbytes: int
    times: int = 1  # brief waits in a row that this one stands for

    @property
    def total_s(self) -> float:
        return self.times * (self.end - self.start)

    @property
    def span(self) -> Interval:
        return self.start, self.start + self.total_s


class Put(NamedTuple):
    """A transfer to a device."""

    at: Place
    start: float
    end: float
    nbytes: int  # 0 for an array made from a list
    again: bool  # whether this line has put the same arrays there before
    numbers: int = 0  # in a list, which JAX converts one by one
    moved: bool = False  # whether all were JAX arrays on other devices or with another sharding
    arrays: int = 0  # of JAX in a list, which JAX joins one by one


class StackSample(NamedTuple):
    """What the reader's line `at` was doing from `start` to `end`."""

    kind: str
    at: Place
    start: float
    end: float
    inside: Place = NOWHERE  # the line that makes the next item for the `for` at `at`
    callers: tuple[Place, ...] = ()  # the reader's lines on the stack above `at`, the innermost first
    blocked: bool = False  # whether a call waits because a device's queue is full
    written: int = 0  # bytes that the process wrote to files and pipes meanwhile
    delayed_s: float = 0.0  # seconds in which the thread waited for a core that other threads used
    under: Place = NOWHERE  # the caller that calls what `vmap` or `grad` made of a function around `at`
    slept_s: float = 0.0  # seconds in which the thread waited for anything but a core

    @property
    def undelayed(self) -> float:
        seconds = self.end - self.start
        return 1 - self.delayed_s / seconds if seconds else 1.0

    @property
    def awake(self) -> float:
        """Return the share in which the thread ran, or waited for a core."""
        seconds = self.end - self.start
        return max(0.0, 1 - self.slept_s / seconds) if seconds else 1.0


class Stack(NamedTuple):
    """The lines outside JAX on the stack while something was traced or compiled, the innermost first."""

    start: float
    end: float
    places: tuple[Place, ...]


class LiveArrays(NamedTuple):
    """The live arrays of one type, and the line that made most of them; NOWHERE if unknown."""

    kind: str
    number: int
    nbytes: int
    at: Place
    held: str = ""  # the variable whose list or dictionary holds them
    held_at: Place = NOWHERE  # a line of the function that has this variable


class Memory(NamedTuple):
    """The bytes that the process and its devices used at a time; 0 on devices that do not count them."""

    when: float
    resident: int
    device: int = 0
    arrays: tuple[LiveArrays, ...] = ()  # where they were listed, the type with the most bytes first


@dataclass
class ExecutedProgram:
    """What windows saw of one program."""

    name: str  # the program's canonical name
    calls: int = 0  # from Python
    # seconds until each call returned, without those in which a CPU device computed in its thread
    dispatch_s: list[float] = field(default_factory=list)
    copies: int = 0  # arrays that these calls had to copy first, from the host or from other devices
    # when each device computed
    devices: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    # seconds of each run of an instruction, by device and instruction name
    ops: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    # seconds of each execution, as far as a window saw it; empty if the trace has no run ids
    run_s: list[float] = field(default_factory=list)
    # the same, by the instructions that ran
    runs: dict[frozenset[str], float] = field(default_factory=lambda: defaultdict(float))
    whole: int = 0  # executions that lie inside a window
    last_ops: set[str] = field(default_factory=set)  # last instructions of executions that ended in a window
    # seconds of each turn: from a call to the next one in the same window
    turns_s: list[float] = field(default_factory=list)
    computed_s: float = 0.0  # of all calls, in which a CPU device computed in their thread

    @property
    def cut_off(self) -> bool:
        """Return whether no execution is known to lie inside a window."""
        return bool(self.run_s) and not self.whole

    @property
    def turn_s(self) -> float | None:
        return median(self.turns_s) if self.turns_s else None

    @property
    def spans(self) -> list[Interval]:
        return [span for spans in self.devices.values() for span in spans]

    @functools.cached_property
    def busiest_s(self) -> float:
        return max(map(total_length, self.devices.values()), default=0.0)

    def op_s(self, wanted: Callable[[str], bool]) -> float:
        """Return the seconds of instructions with wanted names, as a mean over the devices."""
        total_s = sum(sum(times) for (_, op), times in self.ops.items() if wanted(op))
        return total_s / max(1, len(self.devices))

    def seconds_of(self, instructions: Iterable["Instruction"]) -> dict["Instruction", float]:
        """Return the seconds of some instructions, each as a mean over the devices."""
        by_name: dict[str, float] = defaultdict(float)
        for (_, op), times in self.ops.items():
            by_name[op] += sum(times)
        return {i: by_name[i.name] / max(1, len(self.devices)) for i in instructions}


@dataclass
class DeviceActivity:
    windows: list[Interval] = field(default_factory=list)
    programs: dict[str, ExecutedProgram] = field(default_factory=dict)
    silent: list[Interval] = field(default_factory=list)  # windows that saw no instruction, and no call end
    queued: list[Interval] = field(default_factory=list)  # between a call's end and its execution's start
    copying: list[Interval] = field(default_factory=list)  # arrays between devices, one interval for each

    def program(self, name: str) -> ExecutedProgram:
        if name not in self.programs:
            self.programs[name] = ExecutedProgram(name)
        return self.programs[name]

    @property
    def devices(self) -> list[str]:
        """Return the devices that computed anything."""
        return sorted({device for program in self.programs.values() for device in program.devices})


def changes_by_field(before: Compiled, now: Compiled) -> tuple[Change, ...]:
    """Return why a function was traced again: for static objects, what differs in them, if that is known."""
    if any(change.kind != "static value" for change in now.changes):
        return now.changes
    static = {change.what for change in now.changes}
    fields = argument_changes(before.fields, now.fields)
    return tuple(change for change in fields if field_owner(change.what) in static) or now.changes


def field_owner(name: str) -> str:
    """Return the argument or variable to which a field of `Compiled.fields` belongs."""
    return re.split(r"[.\[]", name)[0]


@functools.cache
def canonical_name(name: str) -> str:
    """Return one name for "jit__lambda", "jit__lambda_", "jit(<lambda>)", "<lambda>" and "lambda"."""
    return re.sub(r"\W+", "_", name).removeprefix("jit_").strip("_")


@dataclass
class Log:
    """All events of a watch, in the order of their ends, and what is known of the program."""

    name: str
    start: float = 0.0
    end: float = 0.0
    # events
    compiled: list[Compiled] = field(default_factory=list)
    nested: list[Compiled] = field(default_factory=list)  # compiled while another function was traced
    waits: list[Wait] = field(default_factory=list)
    # by line that waits: the variables that are arrays of NumPy
    host_arrays: dict[Place, set[str]] = field(default_factory=dict)
    # by the types of the programs that take arrays apart: the lines that iterate over such arrays
    iterated: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    # by line that iterates: the variable with such an array, or all with arrays if none has that one
    iterated_variables: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    # by kind and line: the library inside of which a line waits
    waiting_libraries: dict[tuple[str, Place], str] = field(default_factory=dict)
    puts: list[Put] = field(default_factory=list)
    small_puts: dict[Place, list[float]] = field(default_factory=lambda: defaultdict(list))  # times, by line
    samples: list[StackSample] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)  # for the compile report only
    called_back: list[StackSample] = field(default_factory=list)  # in threads of JAX
    memory: list[Memory] = field(default_factory=list)
    forks: list[Place] = field(default_factory=list)  # where processes were forked after JAX had started
    activity: DeviceActivity = field(default_factory=DeviceActivity)
    # the program
    programs: list["Facts"] = field(default_factory=list)
    call_sites: list["CallSite"] = field(default_factory=list)
    # for each of the reader's functions (file, name): the values of parameters that no array can replace, and
    # the lengths of lists
    parameters: dict[tuple[str, str], dict[str, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    modules: list[str] = field(default_factory=list)  # its own files
    peaks: dict[str, int] = field(default_factory=dict)  # bytes of "resident" and "device" memory
    live_arrays: list[LiveArrays] = field(default_factory=list)  # near the peak of memory
    on_cpu: dict[str, float] = field(default_factory=dict)  # seconds there of an accelerator's programs
    # JAX
    names_causes: bool = True  # whether this version says enough for findings
    backend: str = ""  # the platform of the devices that JAX uses by default
    settings: dict[str, Place] = field(default_factory=dict)  # those that were on
    compile_cache: str = ""  # the folder of JAX's compile cache
    # the watch itself
    thread_id: int = field(default_factory=threading.get_ident)  # the thread that is watched
    other_threads: Counter[str] = field(default_factory=Counter)  # waits and compilations in other threads
    overhead_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # processor time
    before_s: float = 0.0  # processor time that the start took; 0 for a block of a program
    opened_s: float = 0.0  # processor time of the process when the program began
    closed_s: float = 0.0  # and when it ended
    others_s: float = 0.0  # processor time of other programs meanwhile
    remarks: list[str] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)  # what errors inside the watch cost

    @property
    def wall_s(self) -> float:
        return self.end - self.start

    @property
    def used_jax(self) -> bool:
        new = any(not facts.old for facts in self.programs)
        return bool(self.compiled or self.waits or new or self.activity.devices)
