"""8.1 Imperative and symbolic programming: what does compiling a network buy, cost and forbid?

Run op by op, Python dispatches every operation of a network at each call. Traced once and compiled, the whole
network is one call. The book's MLP on one example is so small that dispatch is nearly all there is.

Prediction: compiled with `hybridize` it gives the same output, 20 times as fast per call as op by op and 10
times as fast as with `nnx.jit`; for large batches the gap closes, because arithmetic is all there is.

    python experiments/hybridize.py
    python experiments/hybridize.py --batches 1 64 --widths 512 --calls 200
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

from dataclasses import dataclass
from typing import Annotated

from jaxperf import script
from jaxperf.flags import at_least


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    calls: Annotated[int, at_least(1)] = 1000  # calls that one timing is the mean of, as in the book
    rounds: Annotated[int, at_least(1)] = 15  # rounds of each comparison
    widths: Annotated[tuple[int, ...], at_least(4)] = (32, 128, 512, 2048)  # widths of the MLP's input
    batches: Annotated[tuple[int, ...], at_least(1)] = (1, 32, 256)  # batch sizes of the MLP
    image_batch: Annotated[int, at_least(1)] = 16  # batch size for LeNet and ResNet-18
    channels: Annotated[int, at_least(4)] = 512  # of the last convolutions of a ResNet, studied alone
    small: bool = False  # a ResNet of two narrow stages in place of ResNet-18
    seed: int = 0  # seed of parameters and inputs

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(
            calls=20, rounds=6, widths=(32, 128), batches=(1, 8), image_batch=2, channels=64, small=True
        )


FLAGS = script.parse(Config) if __name__ == "__main__" else None  # before JAX is imported

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxperf.chapter import compiled_slower, convolutions, exporting, forbidden, network_size, tracing
from jaxperf.chapter.book import book
from jaxperf.chapter.compiling_price import price_of_compiling
from jaxperf.measure import ceilings, count_ops, interleaved, live_bytes
from jaxperf.models import MLP, RESNET18_STAGES, SMALL_STAGES, hybridize
from jaxperf.report.words import quantity
from jaxperf.result import Measurement, both, ratio


def add(a: Any, b: Any) -> Any:
    return a + b


def fancy_func(a: Any, b: Any, c: Any, d: Any) -> Any:
    e = add(a, b)
    f = add(c, d)
    return add(e, f)


def add_str() -> str:
    return """
def add(a, b):
    return a + b
"""


def fancy_func_str() -> str:
    return """
def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    return add(e, f)
"""


def evoke_str() -> str:
    return add_str() + fancy_func_str() + "\nprint(fancy_func(1, 2, 3, 4))\n"


def imperative_and_symbolic(story: script.Story) -> None:
    """Run the book's opening line by line, then as a string that is compiled and executed."""
    story.heading("8.1 Two ways to write a program")
    story.text(
        """Python is imperative: each statement runs when it is reached and changes the state of the program.
        After `e = add(a, b)` the variable `e` has a value, which you can print or inspect in a debugger."""
    )
    story.code(add, fancy_func)
    with story.output(detail=True):
        print(fancy_func(1, 2, 3, 4))
    story.text(
        """That is convenient and can be slow. Python makes the three calls of `add` one by one, whatever they
        have in common, and it has to keep `e` and `f` until the function returns, because it cannot know that
        nobody will ask for them.""",
        """A symbolic program is written down completely before anything runs. It takes three steps: define
        the computation, compile it, then run it on inputs. Python can do all three with a program in a
        string.""",
    )
    story.code(add_str, fancy_func_str, evoke_str)
    with story.output(detail=True):
        prog = evoke_str()
        print(prog)
        y = compile(prog, "", "exec")
        exec(y, {})


def the_program_that_jax_sees(story: script.Story) -> None:
    """Define, compile and run with JAX, and look at the program at each step."""
    story.heading("8.1 The same program as JAX sees it")
    story.text(
        """JAX makes the symbolic program out of the imperative one. `jax.jit` runs the Python function once
        with tracers, stand-ins that have a shape and a dtype but no value, and writes down every operation on
        them. This first program is called a jaxpr."""
    )
    unknown = [jax.ShapeDtypeStruct((), jnp.float32)] * 4
    traced = jax.jit(fancy_func).trace(*unknown)
    with story.output(detail=True):
        print(traced.jaxpr)
    story.text(
        """The functions `add` and `fancy_func` are gone, only three additions are left. The jaxpr is then
        lowered to StableHLO, the language that the XLA compiler reads. No Python is left in it."""
    )
    with story.output(detail=True):
        print(traced.lower().as_text().strip())
    story.text(
        """A compiler that has the whole program can rewrite it. The book says how far that can go: since all
        inputs are known, it can replace the program by `print(10)`. Here the inputs are known while tracing,
        so XLA can do the same. This is the program it makes:"""
    )
    constant = jax.jit(lambda: fancy_func(*map(jnp.float32, (1, 2, 3, 4)))).trace()
    optimized = constant.lower().compile().as_text()
    entry = optimized[optimized.index("ENTRY") :]
    with story.output(detail=True):
        print(entry[: entry.index("\n}") + 2])
    additions = str(constant.jaxpr).count("add "), count_ops(optimized)["add"]
    story.fact("adds_traced", additions[0], words="additions in the jaxpr")
    story.fact("adds_in_optimized_program", additions[1], words="additions in the optimized program")
    rewritten = additions[1] == 0 and "constant(10)" in entry
    story.claim(
        book="The compiler can rewrite the program to print(10)",
        holds=rewritten,
        predicted="no addition is left, the program returns the constant 10",
        right=rewritten,
        observed=f"{additions[0]} additions traced, {additions[1]} compiled, "
        + ("constant(10) returned" if "constant(10)" in entry else "no constant(10)"),
    )


def kept_by_python(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> int:
    """Bytes of the arrays that `fancy_func` still holds when it returns: e, f and g."""
    before = live_bytes()
    e = add(a, b)
    f = add(c, d)
    g = add(e, f)
    return live_bytes() - before if g is not None else 0


def memory_of_e_and_f(story: script.Story) -> None:
    """Count the bytes that `fancy_func` needs beyond its arguments, op by op and compiled."""
    story.text(
        """Knowing the whole program also saves memory. Called with four arrays of a megabyte, Python holds e,
        f and g until the function returns. The compiled program needs room for its output and for what the
        compiler decided to keep."""
    )
    story.code(kept_by_python)
    arrays = [jnp.full(250_000, i, jnp.float32) for i in (1, 2, 3, 4)]
    held = kept_by_python(*arrays)
    plan: Any = jax.jit(fancy_func).lower(*arrays).compile().memory_analysis()
    needed = plan.output_size_in_bytes + plan.temp_size_in_bytes
    story.fact("bytes_held_op_by_op", held, unit="bytes", words="held by Python when fancy_func returns")
    story.fact(
        "bytes_needed_compiled", needed, unit="bytes", words="output and temporaries of the compiled one"
    )
    story.claim(
        book="Compiling the whole program saves memory: e and f need not be kept",
        holds=needed < held,
        predicted="3 MB op by op, 1 MB compiled",
        right=(held, needed) == (3 * arrays[0].nbytes, arrays[0].nbytes),
        observed=f"{quantity(held, 'bytes')} op by op, {quantity(needed, 'bytes')} compiled",
    )


def get_net(seed: int) -> MLP:
    return MLP((512, 256, 128, 2), rngs=nnx.Rngs(seed))


def hybrid(story: script.Story, config: Config) -> None:
    """Sections 8.1.1 and 8.1.2: the same network, run as Python and compiled, gives the same output."""
    story.heading("8.1.1 Hybrid programming, the best of both; 8.1.2 the MLP")
    story.text(
        """Imperative programs are easier to write and to debug, symbolic ones are faster and can run without
        Python. Frameworks used to choose: Theano and the first TensorFlow were symbolic, Chainer and PyTorch
        imperative. Gluon was designed for both: you develop op by op, then call `hybridize`. Today TensorFlow
        has `tf.function`, PyTorch `torch.compile`, and JAX had `jax.jit` from its first day.""",
        """In Gluon only layers that inherit from HybridBlock are compiled. JAX traces operations, not layers,
        so every `nnx.Module` can be compiled, your own included. `hybridize` of this package wraps `jax.jit`:
        it takes the network apart once and hands its arrays to a compiled function.""",
    )
    story.habit(
        gluon="net = nn.HybridSequential()\nnet.add(...)\nnet.initialize()\nnet.hybridize()\nnet(x)",
        jax="net = MLP((512, 256, 128, 2), rngs=nnx.Rngs(0))\ncompiled = hybridize(net)\ncompiled(x)",
        remark="`net` stays what it was; both share the parameters, so what you train is what is compiled.",
    )
    story.code(MLP, get_net)
    net, x = get_net(config.seed), jax.random.normal(jax.random.key(config.seed), (1, 512))
    compiled = hybridize(net)
    before, after = net(x), compiled(x)
    first = compiled.trace_count
    compiled(x)
    with story.output(detail=True):
        print(f"before hybridizing: {before}\nafter hybridizing:  {after}")
    difference, same = network_size.differ(before, after)
    story.fact("outputs_max_abs_diff", difference, words="largest difference of the outputs")
    story.fact("trace_count_first", first, words="traces of the first call")
    story.fact("trace_count_second", compiled.trace_count - first, words="traces of the second call")
    story.claim(
        book="After hybridize the output stays the same",
        holds=same,
        predicted="equal up to rounding",
        right=same,
        observed=f"largest difference {difference:.1e}",
    )


def benchmark(net: MLP, x: jax.Array, *, calls: int, rounds: int) -> dict[str, Measurement]:
    """Seconds per call of `net(x)` four ways in turns; the clock waits once, after `calls` calls."""
    jitted = nnx.jit(lambda net, x: net(x))
    compiled = hybridize(net)
    ahead = hybridize(net).compile(x)
    ways = {
        "op by op": lambda: net(x),
        "nnx.jit": lambda: jitted(net, x),
        "hybridize": lambda: compiled(x),
        "ahead of time": lambda: ahead(x),
    }
    return interleaved(ways, count=rounds, wait="end", loops=calls)


def performance(story: script.Story, config: Config) -> None:
    """Section 8.1.2: the seconds of 1000 calls."""
    story.heading("8.1.2 Performance")
    story.text(
        f"""The book's benchmark calls the network 1000 times on one example and then waits, because a call
        returns before its result is there (section 8.2). Here a value is the mean of {config.calls} such
        calls. The four ways take turns for {config.rounds} rounds, so that a busy moment of the machine slows
        all of them alike. A ratio is the median over the rounds, and the two numbers after it enclose the
        true one with 95 % confidence; `spread` is the distance between the quartiles, in percent of the
        median.""",
        """`nnx.jit` takes the network apart and puts it together at each call, in Python. `hybridize` does so
        once. Compiled ahead of time, the program accepts these shapes only and skips the search for the right
        one. The last row is the least that a call costs here: a compiled program that computes nothing.""",
    )
    story.code(benchmark)
    net, x = get_net(config.seed), jax.random.normal(jax.random.key(config.seed), (1, 512))
    rows = benchmark(net, x, calls=config.calls, rounds=config.rounds)
    published = (
        book("before hybridizing", 0.4943 / 1000, "8.1.2", beside="op by op"),
        book("after hybridizing", 0.2053 / 1000, "8.1.2", beside="hybridize"),
    )
    least = ceilings.queueing_floor(budget_s=0.2)
    story.table(
        (*rows.values(), least), title="Seconds per call", base="hybridize", references=published, bars="bars"
    )
    story.peers("8.1 MLP")
    gain = ratio(rows["op by op"], rows["hybridize"])
    over_nnx = ratio(rows["nnx.jit"], rows["hybridize"])
    story.fact("eager_over_hybridize", gain.median, words="op by op over hybridize")
    story.fact("nnx_jit_over_hybridize", over_nnx.median, words="nnx.jit over hybridize")
    story.claim(
        book="Symbolic execution is faster (the book: 2.4 times)",
        holds=gain.above(1),
        predicted="20 times as fast as op by op, 10 times as fast as nnx.jit",
        right=both(gain.at_least(20), over_nnx.at_least(10)),
        observed=f"{gain} times as fast as op by op, {over_nnx} times as fast as nnx.jit",
    )
    price_of_compiling(story, net, x, gain_s=rows["op by op"].median - rows["hybridize"].median)


def main(config: Config, story: script.Story) -> None:
    """Section 8.1 in the book's order."""
    stages = SMALL_STAGES if config.small else RESNET18_STAGES
    story.part(imperative_and_symbolic)
    story.part(the_program_that_jax_sees)
    story.part(memory_of_e_and_f)
    story.part(hybrid, config)
    story.part(performance, config)
    widest = story.part(
        network_size.widths_and_batches, config.widths, config.batches, 2 * config.rounds, config.seed
    )
    story.part(exporting.export_and_reload, get_net(config.seed))
    story.part(tracing.prints_fall_silent)
    story.part(tracing.asnumpy_inside)
    story.part(forbidden.what_tracing_forbids)
    story.part(tracing.what_traces_again)
    story.part(network_size.earlier_networks, stages, config.image_batch, config.rounds, config.seed)
    story.part(compiled_slower.where_compiling_is_slower, config.channels, config.rounds, widest=widest)
    wide = config.channels // 4  # a ResNet has a quarter of them where its images are 14 x 14
    often = 3 * config.rounds  # nine gave 1.3 (1.04 to 1.48), against a bound of 1.1
    story.part(convolutions.who_computes_a_convolution, config.image_batch, wide, often)


if __name__ == "__main__":
    script.run(main, FLAGS)
