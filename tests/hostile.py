"""Inputs that something went wrong with: files cut, flipped and spliced, results with any value anywhere."""

import contextlib
import copy
import json
import resource
import signal

from report_results import HOSTILE

NUMBERS = (
    0, -1, 1, 0.5, -2.5, 5e-324, 1e-300, 1e9, 1e300, -1.7e308, 1.7e308, 2**53, 2**63, 2**64, -(2**70), 10**30,
)  # fmt: skip
# what `json.dumps` would not write
BARE = ("1e400", "-1e400", "NaN", "Infinity", f"1{'0' * 400}", f"1{'0' * 5000}")
STRINGS = (
    *HOSTILE, "s", "bytes", "FLOP/s", "images/s", "u", "a\nb", "[bold]x[/]", "[/nope]", "`", "\ud800", "{0}",
)  # fmt: skip
OTHERS = (None, True, False, [], {}, [[]], {"kind": "table"}, {"": ""}, [None] * 3)


def damaged(data, rng):
    """The bytes of a file after one to three accidents."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at, more = rng.randrange(len(out) + 1), rng.randrange(1, 40)
        match rng.randrange(7):
            case 0:
                del out[at:]
            case 1:
                del out[at : at + more]
            case 2:
                out[at:at] = rng.randbytes(more)
            case 3:
                out[at:at] = out[at : at + more]
            case 4 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 5 if at < len(out):
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case _:
                word = rng.choice((0, 1, 27, 28, 29, 100_000, 100_001, 0x7FFFFFFF, 0xFFFFFFFF))
                out[at & ~3 : (at & ~3) + 4] = word.to_bytes(4, "big")
    return bytes(out)


def distorted(body, rng):
    """A result's JSON with one to four of its values replaced, left out, repeated or exchanged."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _distort(rng.choice(list(_places(body))), rng, list(_places(body)))
    text = json.dumps(body)
    for word in BARE:
        text = text.replace(f'"@{word}"', word)
    return text


def _places(value):
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _distort(place, rng, places):
    holder, key = place
    value = holder[key]
    match rng.randrange(10):
        case 0:
            del holder[key]
        case 1:
            other, at = rng.choice(places)
            with contextlib.suppress(LookupError):  # exchanged with what holds it, or is gone
                holder[key] = copy.deepcopy(other[at])
        case 2 if isinstance(holder, list):
            holder.extend(copy.deepcopy(holder) * rng.choice((1, 1, 20)))
        case 3 | 4:
            bare = (f"@{word}" for word in BARE)
            holder[key] = copy.deepcopy(rng.choice((*NUMBERS, *bare, *STRINGS, *OTHERS)))
        case _:  # of the same kind, so that the reader has no reason to refuse it
            holder[key] = _akin(value, rng)


def _akin(value, rng):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice(NUMBERS)
    if isinstance(value, str):
        return rng.choice(STRINGS)
    if isinstance(value, list):
        return rng.choice((value[:1], value[::-1], value * 2, value * 30, []))
    return {} if isinstance(value, dict) else value


class OutOfPatienceError(BaseException):
    """An input took more processor time than any may."""


@contextlib.contextmanager
def patience(seconds):
    """Bound the processor time of what runs in here; time spent waiting for a core does not count."""

    def over(number, frame):
        raise OutOfPatienceError(f"more than {seconds} s of processor time")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
