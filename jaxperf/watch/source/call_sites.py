"""Find the reader's lines that call jitted functions, from the functions that samples see running.

The line at which a function was traced is not enough: an earlier call may have traced it before a loop, or
before the watch. And a call may be so short that no sample sees it. But nearly every sample sees the function
around the call, so all names that this function calls are looked up.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from jaxperf.watch.log import Compiled, canonical_name
from jaxperf.watch.observe import frame_arguments, source_location
from jaxperf.watch.observe.source_location import Place, jitted_program
from jaxperf.watch.source import loop_body, statements

DEPTH = 3  # nested calls that are followed from a function that a sample sees


class CallSite(NamedTuple):
    """A line that calls a jitted function; `program` is empty if it does so indirectly."""

    at: Place
    program: str = ""
    callers: tuple[Place, ...] = ()  # the reader's lines on the stack above `at`, the innermost first


class CallSites:
    """The call sites seen so far, in `sites`."""

    def __init__(self) -> None:
        self.sites: set[CallSite] = set()
        self._left: dict[CodeType, Collection[tuple[str, int]]] = {}  # called names, not yet defined
        self._stepping: set[CodeType] = set()  # functions that have call sites

    def look(self, frame: FrameType | None) -> None:
        """Add the call sites in the reader's functions on a frame's stack."""
        frames = [
            f
            for f in source_location.frames_outwards(frame)
            if not source_location.library_of(f.f_code.co_filename)
        ]
        chain, below = tuple(map(source_location.place_of, frames)), False
        for i, f in enumerate(frames):
            if below:
                self.sites.add(CallSite(chain[i]))
            here = self._note(
                f.f_code, functools.partial(source_location.variable_value, f), chain[i + 1 :], DEPTH
            )
            below = below or here

    def _note(
        self, code: CodeType, lookup: Callable[[str], Any], callers: tuple[Place, ...], depth: int
    ) -> bool:
        """Add the call sites in a function, and return whether it has any."""
        names = self._left[code] if code in self._left else source_location.called_names(code)
        left: set[tuple[str, int]] = set()
        self._left[code] = left  # set before the loop, since the function may be recursive
        for name, line in names:
            value, method = source_location.resolve_name(name, lookup)
            at, program = (
                Place(code.co_filename, line, code.co_name),
                "" if method else jitted_program(value, name),
            )
            if value is None:
                left.add((name, line))
            elif program or self._goes_on(value, method, (at, *callers), depth):
                self.sites.add(CallSite(at, program, callers))
                self._stepping.add(code)
        return code in self._stepping

    def _goes_on(self, called: Any, method: str, callers: tuple[Place, ...], depth: int) -> bool:
        """Return whether a called object is a function of the reader that has call sites."""
        function, owner = _function(called, method)
        if function is None or not depth or source_location.library_of(function.__code__.co_filename):
            return False
        if function.__code__ not in self._left:
            self._note(function.__code__, _names(function, owner), callers, depth - 1)
        return function.__code__ in self._stepping


def _function(called: Any, method: str) -> tuple[FunctionType | None, Any]:
    """Return the Python function of a called object, and the object whose method it is; None for none."""
    owner = called
    if not method and type(called) in (FunctionType, MethodType):
        owner, function = getattr(called, "__self__", None), getattr(called, "__func__", called)
    else:
        function = inspect.getattr_static(type(called), method or "__call__", None)
    return (function, owner) if isinstance(function, FunctionType) else (None, None)


def _names(function: FunctionType, owner: Any) -> Callable[[str], Any]:
    """Return a look-up of names in a function that does not run and so has no local variables."""
    code, known = function.__code__, frame_arguments.captured_values(function)
    if owner is not None and code.co_argcount:
        known[code.co_varnames[0]] = owner
    local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return lambda name: known.get(name) if name in local else function.__globals__.get(name)


def called_at(
    compiled: Iterable[Compiled], call_sites: Iterable[CallSite], ran: Iterable[str]
) -> list[tuple[Compiled, Place]]:
    """Return the reader's jitted functions, each with the line that calls it again and again.

    That is the line that traced it, unless a line inside more loops also calls it and has traced nothing.

    Args:
      compiled: what was traced.
      call_sites: lines that call jitted functions.
      ran: names of programs that ran; those that were not traced were compiled before the watch.
    """
    traced = [c for c in compiled if c.explained]
    free = {(canonical_name(s.program), s.at): s for s in sorted(call_sites) if s.program}
    for c in traced:
        for name in _called(c):
            free.pop((name, c.at), None)
    calls = []
    for c in traced:
        others = [site for (program, _), site in free.items() if program in _called(c)]
        most = max(others, key=_turns, default=None)
        if most and _turns(most) > _turns(c):
            calls.append((c, most.at))
            del free[canonical_name(most.program), most.at]
        else:
            calls.append((c, c.at))
    known = {name for c in traced for name in _called(c)}
    for name in sorted({*ran} - known):
        if sites := [site for (program, _), site in free.items() if program == name]:
            most = max(sites, key=_turns)
            c = Compiled(most.program, most.at, explained=True, callers=most.callers)
            calls.append((c, c.at))
    return calls


def _called(c: Compiled) -> set[str]:
    return {canonical_name(c.name), canonical_name(c.called)}


def _turns(call: Compiled | CallSite) -> int:
    return sum(len(statements.enclosing_nodes(p, loop_body.LOOP)) for p in (call.at, *call.callers))
