import pytest

from jaxperf.watch.source import loop_body

PROGRAM = """\
def main(loader, w, table):
    outside = load(0)
    for i in range(9):
        x = get_batch(i)
        for part in (1, 2):
            y = part * x
        g = np.clip(w, 0, 1)
        late = scale(g)
        obs = env.state
        unused = describe(i)
        self.w, loss = step(self.w, x, y, late, obs)
        w = self.w
        env.act(loss)
        losses.append(loss)
        text = str(losses)
        total += sum(text)
        z = step(w, get_batch(i), outer(w))
    after = load(1)
"""


CONTROL = """\
def main(plan, x):
    for t in range(99):
        A = linearize(x)
        force = solver.variable()
        fit = solver.problem(A, force)
        fit.solve()
        u = bisect(A)
        picture = draw(x)
        picture.save()
        seen.append(x)
        goal = read(t)
        if t % 9:
            plan.solve()
        x = advance(x, force.value, u, goal)
"""


@pytest.mark.parametrize(
    ("start", "between"),
    [
        ("fit.solve", True),  # changes what the problem was made of, which the next step takes
        ("u = ", True),
        ("picture.save", False),  # no step takes it; arrays do not change
        ("seen", False),
        ("goal", False),  # needs no step's result
        ("plan.solve", False),
        ("A = ", True),
    ],
)
def test_what_needs_a_step_and_is_needed_by_the_next_one_cannot_run_beside_steps(start, between, places):
    at = places(CONTROL)
    assert loop_body.between_steps(at(start), {at("x = advance")}) is between


DRAWING = """
for i in range(9):
    w = step(i, w)
    plot.title(i)
    plot.points(w)
    plot.pause(0.1)
"""


def test_what_draws_by_the_number_of_a_turn_changes_nothing_that_a_step_takes(places):
    at = places(DRAWING)
    assert not loop_body.between_steps(at("plot.pause"), {at("w = step")})


@pytest.fixture
def at(places):
    return places(PROGRAM)


@pytest.fixture
def steps(at):
    return {at("self.w, loss"), at("z = ")}


@pytest.mark.parametrize(("rows", "needed"), [
    ("for x in xs:\n    seen = jnp.append(seen, x)\nshow(seen)", False),
    ("for x in xs:\n    seen = jnp.append(seen, x)\n    fit(seen)", True),
    ("def add(self, x):\n    self.seen = jnp.append(self.seen, x)", True),
])  # fmt: skip
def test_what_grows_is_needed_in_each_turn_if_the_loop_or_other_methods_use_it(rows, needed, places):
    assert loop_body.needed_in_turns(places(rows)(2)) == needed


@pytest.mark.parametrize(
    ("start", "ahead"),
    [
        ("x = get", True),
        ("y = part", True),  # made from what could run ahead
        ("g = np", False),  # of what the step before computed
        ("late", False),  # and what is made of that
        ("obs", False),  # its object hears of what a step computed
        ("unused", False),  # no step reads it
        ("losses.append", False),
        ("total", False),
        ("self.w, loss", False),  # a step itself
        ("outside", False),
        ("after", False),
    ],
)
def test_what_feeds_a_step_and_needs_none_could_run_ahead(start, ahead, at, steps):
    assert loop_body.could_run_ahead(at(start), steps) == ahead


def test_of_a_steps_arguments_those_that_need_no_step_could_run_ahead(at, steps):
    for name, ahead in (("get_batch", True), ("outer", False)):
        assert loop_body.could_run_ahead(at("z = "), steps, name) == ahead


@pytest.mark.parametrize(
    ("start", "back"),
    [("self.w, loss", True), ("total", False), ("w = self.w", True), ("text", False), ("after", False)],
)
def test_a_value_comes_back_where_it_decides_what_its_statement_reads_next(start, back, at):
    assert (loop_body.use_in_loop(at(start)) == "next turn") == back


def test_a_loop_belongs_to_its_own_function_and_to_steps_in_its_body(at, steps):
    assert loop_body.stepping_loop(at("unused"), steps) is not None
    assert loop_body.stepping_loop(at("unused"), {at("for i")}) is None
    assert loop_body.stepping_loop(at("unused"), {at("z = ", "other")}) is None
    assert loop_body.is_step(at("z = ", ""), steps) and not loop_body.is_step(at("for i"), steps)


READING = """\
def main(w, order, losses):
    for i in range(9):
        g = np.asarray(gradient(w))
        h = g / 2
        w = np.clip(h, 0, 1)
        losses.append(np.asarray(loss))
        rng.shuffle(order)
        total = np.sum(losses)
"""


@pytest.mark.parametrize(
    ("line", "other", "reads"),
    [(5, 3, True), (4, 3, True), (7, 3, False), (7, 6, False), (8, 6, True), (5, 6, False), (6, 6, True)],
)
def test_a_statement_reads_what_another_made_directly_or_by_way_of_others(line, other, reads, places):
    here, there = map(places(READING), (line, other))
    assert loop_body.reads_from(here, there) == reads
    assert not loop_body.reads_from(here, there._replace(function="other"))


READS = """\
def main(steps, layers, loader):
    for i in range(steps):
        best = max(best, float(scores[i]))
        first = int(scores[0])
        w = step(w)
        loss = w[i].item()
        for layer in layers:
            x = layer(x)
        for _ in range(4):
            x = x * 2
        for scale in SCALES:
            x = x * scale
        for shift in (1, 2):
            x = x + shift
        for part in range(len(SCALES), PARTS * 2 - 1):
            x = x * part
        for part in range(PARTS - 1):
            x = x - part
        for turn in range(TURNS):
            x = x**turn
        for epoch in range(EPOCHS):
            x = x + epoch
        while x > 1:
            x = x / 2
        for batch in loader:
            x = use(batch)
    last = float(scores[steps])

SCALES = (1, 2, 3)
PARTS = EPOCHS = 5
TURNS = 400
"""


@pytest.mark.parametrize(
    ("start", "array"),
    [("best", "scores"), ("first", ""), ("loss", ""), ("last", "")],  # the same one; a new array; no loop
)
def test_elements_of_an_array_that_stays_are_read_in_a_loop(start, array, places):
    assert loop_body.element_read(places(READS)(start)) == array


@pytest.mark.parametrize(
    ("test", "arrays"),
    [
        ("labels[i] == guesses[i]", "labels, guesses"),
        ("not alive[i]", "alive"),
        ("seen and scores[i] > 0.5", "scores"),
        ("scores.max() > 0.5", ""),
        ("inside(scores[i])", ""),  # it may take the element as an array
        ("scores[0] > 0.5", ""),
    ],
)
def test_a_test_reads_the_elements_that_it_compares(test, arrays, places):
    block = "        total += float(others[i])\n"
    at = places(f"for i in range(9):\n    if {test}:\n{block}    mark = '*' if {test} else ' '\n")
    assert loop_body.element_read(at(2)) == loop_body.element_read(at(4)) == arrays


@pytest.mark.parametrize(
    ("start", "loop"),
    [
        ("w = step", "for i in"),
        ("x = layer", "for i in"),  # over what the function gets: its layers
        ("x = x * 2", "for i in"),  # few turns
        ("x = x * scale", "for i in"),
        ("x = x + shift", "for i in"),
        ("x = x - part", "for i in"),
        ("x = x * part", "for part in range(len"),
        ("x = x**turn", "for turn"),
        ("x = x + epoch", "for epoch"),  # over data, though few turns
        ("x = x / 2", "while"),
        ("x = use", "for batch"),  # over data
        ("last", ""),
    ],
)
def test_a_loop_of_steps_is_told_from_one_over_layers(start, loop, places):
    at = places(READS)
    node = loop_body.loop_of_steps(at(start))
    assert node.lineno == at(loop).line if loop else node is None


@pytest.mark.parametrize(
    ("unpacked", "looped"),
    [
        ("*hidden, last = weights", False),
        ("hidden = weights['layers'][:-1]", False),
        ("hidden = split(weights)", True),  # of which nothing is known
    ],
)
def test_parts_of_a_parameter_are_layers_as_it_is_itself(unpacked, looped, places):
    at = places(
        f"def forward(weights, x):\n    {unpacked}\n    for layer in hidden:\n        x = x @ layer\n"
    )
    assert bool(loop_body.loop_of_steps(at(4, "forward"))) is looped


@pytest.mark.parametrize(
    ("over", "arrays", "looped"),
    [
        ("zip(rows, labels)", {"rows"}, True),  # an array, as samples saw it
        ("zip(rows, labels)", set(), False),  # parameters, which may be layers
        ("zip(rows, others)", set(), True),
        ("jax.tree.leaves(rows)", set(), False),
        ("range(len(rows))", set(), True),
    ],
)
@pytest.mark.parametrize(
    "form", ["for x in {}:\n        y = f(x)\n", "return jnp.stack([\n        f(x) for x in {}])\n"]
)
def test_a_comprehension_is_a_loop_of_steps_as_a_statement_is(form, over, arrays, looped, places):
    at = places(f"def batch(rows, labels):\n    {form.format(over)}")(3, "batch")
    assert bool(loop_body.loop_of_steps(at, frozenset(arrays))) is looped
    assert loop_body.loop_of_steps(at, iterated=frozenset({2, 3}))  # seen to iterate over an array


@pytest.mark.parametrize(
    ("test", "decided"),
    [("if value < best", True), ("if step % 9 == 0", False), ("while shown < 3", True), ("if ready", False)],
)
def test_a_test_of_the_loop_reads_what_a_statement_assigns_or_what_is_made_of_it(test, decided, places):
    body = f"    value = float(evaluate(w))\n    shown = 2 * value\n    {test}:\n        save(w)\n"
    use = loop_body.use_in_loop(places("for step in range(9):\n" + body)(2, ""))
    assert use == ("test" if decided else "")
