"""Find the reader's lines that call jitted functions, from the functions that samples see running.

The line at which a function was traced is not enough: an earlier call may have traced it before a loop, or
before the watch. And a call may be so short that no sample sees it. But nearly every sample sees the function
around the call, so all names that this function calls are looked up, and those that the program's own
functions among them call: a method that only calls the step is as short as the step.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from jaxperf.watch.log import Compiled, canonical_name
from jaxperf.watch.observe import source_location
from jaxperf.watch.observe.frame_arguments import captured_values
from jaxperf.watch.observe.source_location import Place, jitted_program
from jaxperf.watch.source import statements

DEPTH = 2  # functions inside each other, which a sample need not see, in which calls are looked up


class CallSite(NamedTuple):
    """A line that calls a jitted function; `program` is empty if it does so indirectly."""

    at: Place
    program: str = ""
    callers: tuple[Place, ...] = ()  # the reader's lines on the stack above `at`, the innermost first


class CallSites:
    def __init__(self) -> None:
        self.sites: set[CallSite] = set()
        # by the id of a code, which `calls_by_offset` keeps alive: the lines of called names, not yet defined
        self._left: dict[int, dict[str, list[int]]] = {}
        self._stepping: set[int] = set()  # the codes of functions that have call sites

    def look(self, frame: FrameType | None) -> None:
        """Add the call sites in the reader's functions on a frame's stack."""
        outwards = source_location.frames_outwards(frame)
        frames = [f for f in outwards if not source_location.library_of(f.f_code.co_filename)]
        chain, below = tuple(map(source_location.place_of, frames)), False
        for i, f in enumerate(frames):
            if below:
                self.sites.add(CallSite(chain[i]))
            self._note(f, chain[i + 1 :])
            below = below or id(f.f_code) in self._stepping

    def _note(self, frame: FrameType, callers: tuple[Place, ...]) -> None:
        code, lookup = frame.f_code, functools.partial(source_location.variable_value, frame)
        names = self._left[id(code)] if id(code) in self._left else source_location.called_names(code)
        self._left[id(code)] = self._note_calls(code, names, lookup, callers, DEPTH)

    def _note_calls(
        self,
        code: CodeType,
        names: dict[str, list[int]],
        lookup: Callable[[str], Any],
        callers: tuple[Place, ...],
        depth: int,
    ) -> dict[str, list[int]]:
        """Note calls of names in a function, and in `depth` functions inside each other that it calls.

        Returns the names that are not defined yet.
        """
        left = {}
        for name, lines in names.items():
            value, method = source_location.resolve_name(name, lookup)
            places = [Place(code.co_filename, line, code.co_name) for line in lines]
            if value is None:
                left[name] = lines
            elif not method and (program := jitted_program(value, name)):
                self.sites.update(CallSite(at, program, callers) for at in places)
                self._stepping.add(id(code))
            elif depth and (function := _own_function(value, method)):
                inner, variable = function.__code__, functools.partial(_variable, function, value)
                called = source_location.called_names(inner)
                for at in places:
                    self._note_calls(inner, called, variable, (at, *callers), depth - 1)
        return left


def _own_function(value: Any, method: str) -> FunctionType | None:
    """Return a function of the program, or its method of this name; None for anything else."""
    function = inspect.getattr_static(type(value), method, None) if method.isidentifier() else value
    if type(function) is FunctionType and not source_location.library_of(function.__code__.co_filename):
        return function
    return None


def _variable(function: FunctionType, own: Any, name: str) -> Any:
    """Return the value of a name in a function that does not run, of whose variables only `self` is known.

    `own` is the object of a method, or the function itself.
    """
    variables = function.__code__.co_varnames
    if name in variables:
        return own if name == variables[0] and own is not function else None
    return captured_values(function).get(name, function.__globals__.get(name))


def called_at(
    compiled: Iterable[Compiled], call_sites: Iterable[CallSite], ran: Iterable[str]
) -> list[tuple[Compiled, Place]]:
    """Return the reader's jitted functions, each with the line that calls it again and again.

    That is the line that traced it, unless a line inside more loops also calls it and has traced nothing. Of
    the programs that `ran`, those that were not traced were compiled before the watch.
    """
    traced = [c for c in compiled if c.explained]
    free = {(canonical_name(s.program), s.at): s for s in sorted(call_sites) if s.program}
    for c in traced:
        for name in _called(c):
            free.pop((name, c.at), None)

    def in_most_loops(names: Collection[str]) -> CallSite | None:
        sites = (site for (program, _), site in free.items() if program in names)
        return max(sites, key=_turns, default=None)

    calls, known = [], set[str]()
    for c in traced:
        known |= _called(c)
        site, at = in_most_loops(_called(c)), c.at
        if site and _turns(site) > _turns(c):
            at = free.pop((canonical_name(site.program), site.at)).at
        calls.append((c, at))
    for site in filter(None, (in_most_loops({name}) for name in sorted({*ran} - known))):
        calls.append((Compiled(site.program, site.at, explained=True, callers=site.callers), site.at))
    return calls


def _called(c: Compiled) -> set[str]:
    return {canonical_name(c.name), canonical_name(c.called)}


def _turns(call: Compiled | CallSite) -> int:
    return sum(len(statements.enclosing_nodes(p, statements.LOOP)) for p in (call.at, *call.callers))
