import functools

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch.observe.executables import EQUAL_COUNT, IN_A_ROW, Facts, unrolled_loops

TURNS = EQUAL_COUNT + 6
W, X = jnp.ones((8, 8)), jnp.ones((4, 8))


def loops_of(function, *arguments, few=False):
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return unrolled_loops(Facts("f", "cpu", 1.0, 1.0, text=text), few=few)


def shared(w, x):
    for _ in range(TURNS):  # shared
        x = jnp.tanh(x @ w)
    return x


def stacked(ws, x):
    for i in range(TURNS):  # stacked
        x = jnp.tanh(x @ ws[i])
    return x


def field(p, state):
    prey, hunters = state
    return jnp.stack([p[0] * prey - p[1] * prey * hunters, p[2] * prey * hunters - p[3] * hunters])


def collected(p, state):
    states = [state]
    while len(states) < 20:  # collected
        states.append(states[-1] + 0.1 * field(p, states[-1]))
    return jnp.stack(states)


def layers(ws, x):
    for w in ws:
        x = x + jnp.tanh(x @ w)
    return x


def updates(ws, x):
    norm = sum(jnp.sum(w**2) for w in ws)
    return jax.tree.map(lambda w: w / norm + x.sum(), ws)


def both_sides(w, x):
    for _ in x:  # both_sides
        w = x @ w @ x
        w = jnp.tanh(w)
    return w


def scanned(w, x, *, unroll):
    def turn(x, _):
        return jnp.tanh(x @ w), None

    return jax.lax.scan(turn, x, None, length=2 * TURNS, unroll=unroll)[0]


def decoded(ws, tokens):
    for _ in range(20):  # decoded
        x = tokens
        for w in ws:
            x = x + jnp.tanh(x @ w)
        tokens = jnp.concatenate([tokens, x[-1:]])
    return tokens


def shapes(x):
    return jnp.stack([jnp.tanh(x[:i] * 2).sum() for i in range(1, TURNS)])


@pytest.mark.parametrize(("function", "weights", "x"), [
    (shared, W, X), (stacked, jnp.ones((TURNS, 8, 8)), X), (both_sides, *[jnp.ones((TURNS, TURNS))] * 2),
])  # fmt: skip
def test_turns_that_could_share_a_body_are_a_loop(function, weights, x):
    loop, *others = loops_of(function, weights, x)
    assert f"# {function.__name__}" in loop.at.source
    assert {each.iterations for each in (loop, *others)} == {TURNS}
    assert 0.5 < loop.share <= 1.0


def test_a_loop_over_all_layers_whose_array_grows_is_found_and_the_layers_are_not():
    weights = [W + i for i in range(8)]
    loops = loops_of(decoded, weights, X, few=True)
    assert loops
    assert all("# decoded" in loop.at.source and loop.iterations in (19, 20) for loop in loops)


def test_a_loop_is_found_at_its_while_and_not_at_the_line_that_stacks_what_its_turns_made():
    gradient = jax.grad(lambda p, state: jnp.mean(collected(p, state) ** 2))
    loops = loops_of(gradient, jnp.ones(4), jnp.ones(2), few=True)
    assert loops
    assert all("# collected" in loop.at.source and loop.iterations >= IN_A_ROW for loop in loops)


@pytest.mark.parametrize(("function", "arguments"), [
    (layers, ([W] * TURNS, X)), (jax.grad(lambda ws, x: layers(ws, x).sum()), ([W] * TURNS, X)),
    (updates, ([W] * TURNS, X)), (shapes, (jnp.ones(TURNS),)),
    (lambda w, x: jax.lax.fori_loop(0, TURNS, lambda _, x: jnp.tanh(x @ w), x), (W, X)),
    (functools.partial(scanned, unroll=True), (W, X)), (functools.partial(scanned, unroll=TURNS), (W, X)),
])  # fmt: skip
def test_what_no_single_body_could_do_is_none(function, arguments):
    assert loops_of(function, *arguments) == []


def test_a_loop_around_a_lambda_is_not_inside_its_program_and_one_in_it_is(compiles_anew):
    def turn(x, w):
        return jnp.tanh(x @ w)

    for _ in range(TURNS):  # which makes the functions, and runs none
        repeated = lambda w, x: functools.reduce(lambda x, _: turn(x, w), range(TURNS), x)  # noqa: E731
        collected = lambda w, xs: [xs.append(turn(xs[-1], w)) for _ in range(TURNS)] and xs[-1]  # noqa: E731
    assert loops_of(repeated, W, X) == []
    assert {x.at.source.partition(" ")[0] for x in loops_of(collected, W, [X])} == {"collected"}


def test_copies_that_fusion_made_are_no_turns(optimized, compiles_anew):
    def smoothed(x):
        for _ in range(24):
            x = jnp.tanh(x) * jnp.sin(x + jnp.roll(x, 1, 0))
        return x

    loops = loops_of(smoothed, jnp.ones((64, 64)))
    assert {(loop.at.source, loop.iterations) for loop in loops} == {("for _ in range(24):", 24)}


def simulation(field):
    def step(field, _):
        for _ in range(4):
            field = jnp.tanh(field + 0.1 * (jnp.roll(field, 1, 0) - 2 * field + jnp.roll(field, -1, 0)))
            field = jnp.sin(field) * jnp.cos(field) + field
        return field, None

    return jax.grad(lambda f: jax.lax.scan(step, f, None, length=50)[0].sum())(field)


def test_a_loop_of_four_turns_is_none_whatever_fusing_has_copied():
    assert loops_of(simulation, jnp.ones((100, 100)), few=True) == []


def recurrent(w, x, turns):
    for _ in range(turns):
        x = jnp.tanh(x @ w)  # recurrent
    return x


def normal_layers(ws, x):
    for w in ws:
        x = x @ w
        x = x / jnp.sqrt(jnp.mean(x**2) + 1e-6)  # no weights of its own
        x = jax.nn.gelu(x)
    return x


def normal(key):
    return jax.random.normal(key, (64, 64)) + jax.lax.erf_inv(jnp.ones((64, 64)) / 2)


@pytest.mark.thorough
def test_where_compiling_takes_long_a_loop_of_few_turns_counts_and_layers_do_not():
    for turns, count in ((IN_A_ROW + 4, 1), (IN_A_ROW - 4, 0)):
        once = jax.tree_util.Partial(recurrent, turns=turns)
        assert len(loops_of(lambda w, x, once=once: once(w, x), W, X, few=True)) == count
        assert loops_of(lambda w, x, once=once: once(w, x), W, X) == []
    for function in (layers, normal_layers, jax.grad(lambda ws, x: normal_layers(ws, x).sum())):
        assert loops_of(function, [W] * 24, X, few=True) == []
    assert loops_of(updates, [W] * 24, X, few=True) == []
    assert loops_of(normal, jax.random.key(0), few=True) == []


def returns(rewards, x):
    total, all_of = jnp.zeros(4), []
    for t in reversed(range(TURNS)):  # returns
        kept = jnp.sin(rewards[t]) - jnp.cos(rewards[t])  # no other turn needs it
        total = kept + 0.9 * total
        all_of.append(total)
    return jnp.stack(all_of) * x.sum()


def test_what_each_turn_computes_for_itself_goes_with_its_loop():
    (loop,) = loops_of(returns, jnp.ones((TURNS, 4)), X)
    assert "# returns" in loop.at.source and loop.share > 0.9


def solved(w, x):
    for _ in range(20):  # solved
        x = jax.lax.while_loop(lambda x: jnp.max(x) > 0.1, lambda x: jnp.tanh(x @ w) * 0.5, x + 1)
    return x


def recurrent_layers(ws, x):
    for w in ws:
        _, x = jax.lax.scan(lambda h, x, w=w: (jnp.tanh(h @ w + x),) * 2, x[0], x)
    return x


@pytest.mark.parametrize("function", [solved, lambda x: solved(jnp.arange(64.0).reshape(8, 8), x)])
def test_turns_that_each_hold_a_loop_of_lax_are_a_loop(function):
    arguments = (W, X) if function is solved else (X,)
    loop, *others = loops_of(function, *arguments, few=True)
    assert "# solved" in loop.at.source and loop.iterations == 20 and not others


def damped(rates, w, x):
    for rate in rates:  # damped
        x = jnp.tanh(x @ w) * rate
    return x


def test_a_number_for_each_turn_makes_no_layers():
    (loop,) = loops_of(damped, [jnp.float32(i) for i in range(20)], W, X, few=True)
    assert "# damped" in loop.at.source and loop.iterations == 20


def test_layers_that_each_hold_a_scan_are_none():
    weights = [W + i for i in range(20)]
    assert loops_of(recurrent_layers, weights, jnp.ones((16, 8)), few=True) == []
