"""The results of running the same workloads on JAX, MXNet and PyTorch: tables, curves, claims."""

from __future__ import annotations

import dataclasses

from jaxperf import peers
from jaxperf.chapter.book import book
from jaxperf.measure.memory import GIVE_BACK
from jaxperf.peers import Limits, Pool, Study, Workload
from jaxperf.report.words import quantity
from jaxperf.result import Axis, Curve, Reference, negated, ratio
from jaxperf.script import Story

BOOK: dict[tuple[str, str, str], Reference] = {  # by workload, quantity and configuration of MXNet
    ("8.1 MLP", "", "imperative"): book("before hybridizing", 0.4943e-3, "8.1.2"),
    ("8.1 MLP", "", "hybridized"): book("after hybridizing", 0.2053e-3, "8.1.2"),
    ("8.2 dot", "queued", "imperative"): book("queued", 0.0014, "8.2.1"),
    ("8.2 dot", "finished", "imperative"): book("finished", 0.3517, "8.2.1"),
    ("8.2 loop", "synchronous", "imperative"): book("synchronous", 7.3877e-3, "8.2.3"),
    ("8.2 loop", "asynchronous", "imperative"): book("asynchronous", 3.5370e-3, "8.2.3"),
}

CLOCKS = 0.1  # the host's clock also sees the first launch, and the wake-up after the last


def one_workload(story: Story, workload: Workload, pool: Pool, *, budget_s: float) -> Study:
    """One workload on all systems: tables, curves, and what needs fresh processes.

    Args:
      story: is told the results.
      workload: what to do.
      pool: live workers of the systems.
      budget_s: seconds after which no further round begins, once there have been six.
    """
    story.heading(workload.name)
    story.text(f"{workload.title}.")
    limits = Limits(budget_s=budget_s)
    study = peers.study(workload, pool, limits=limits, say=story.note)
    if workload.settings["task"] == "export":
        reloaded(story, study, pool, limits)
    if workload.settings["task"] == "memory":
        memory(story, study, pool, limits)
    for what in workload.quantities:
        if rows := peers.measurements(study, what):
            ours = study.best("jax", what)
            references = [
                dataclasses.replace(BOOK[key], beside=m.name)
                for m in rows
                if m.system == "mxnet" and (key := (m.workload, m.quantity, m.configuration)) in BOOK
            ]
            base = f"{ours.system} {ours.configuration}" if ours and workload.rounds else ""
            title = f"{workload.name}, {what}" if what else workload.name
            story.table(rows, title=title, base=base, references=references, bars="bars")
    story.grid(
        ("configuration", "first call", "largest difference from JAX"),
        [
            (e.name, quantity(e.first_s, "s"), f"{e.verdict.error:.2g}" if e.verdict else "no answer")
            for e in study.entries
        ],
        right=(1, 2),
        detail=True,
    )
    two_clocks(story, study)
    if curves := peers.curves(study):
        story.lines(f"{workload.name}: training loss", curves, x=Axis("step"), y=Axis("loss"))
    return study


def two_clocks(story: Story, study: Study) -> None:
    """On a GPU, hold the host's clock against CUDA events: what was not waited for would show here."""
    for entry in study.timed:
        if peers.EVENTS in entry.values:
            pair = (entry.measurement(study.workload, quantity) for quantity in (peers.EVENTS, ""))
            found = ratio(*pair)
            story.claim(
                ours=f"{study.workload.name}, {entry.name}: the GPU's own clock agrees with the host's",
                holds=found.within(CLOCKS),
                predicted=f"the time between two CUDA events within {CLOCKS:.0%} of the host's",
                right=found.within(CLOCKS),
                observed=f"{found} of it",
            )


def reloaded(story: Story, study: Study, pool: Pool, limits: Limits) -> None:
    """Have fresh processes read what the live ones exported."""
    for read in peers.reload(study, pool, limits=limits, say=story.note):
        name = f"fresh_reload_s_{read.name.replace('/', '_').replace('.', '_')}"
        story.fact(name, read.seconds, unit="s", words=f"{read.name}: from file to output, fresh process")
        story.claim(
            book=f"{read.name}: the export runs in a process that has never seen the network",
            holds=read.verdict.agrees,
            predicted="the same output",
            right=read.verdict.agrees,
            observed=read.verdict.trouble or f"the same within {read.verdict.error:.2g}",
        )


def memory(story: Story, study: Study, pool: Pool, limits: Limits) -> None:
    """Watch each system's process while it trains, synchronously and asynchronously."""
    runs = peers.memory(study, pool, limits=limits, say=story.note, environment=GIVE_BACK)
    story.grid(
        ("system", "mode", "all batches handed out", "all done"),
        [(r.entry.name, r.mode, quantity(r.handed_out_s, "s"), quantity(r.finished_s, "s")) for r in runs],
        right=(2, 3),
    )
    if runs:
        caption = "Resident memory above the level at the start of the run."
        curves = [r.curve for r in runs]
        x, y = Axis("time", "s"), Axis("memory", "bytes")
        story.lines("8.2 memory over time", curves, x=x, y=y, caption=caption, panels=True)


def versions(story: Story, pool: Pool) -> None:
    """Record the versions that the workers reported."""
    found = dict(story.environment.versions)
    for name, greeting in pool.greetings.items():
        found |= {k: v for k, v in greeting["versions"].items() if k == name}
        words = ", ".join(f"{k} {v}" for k, v in greeting["versions"].items())
        story.fact(f"versions_{name}", words, words=f"versions in {name}'s environment")
    story.environment = dataclasses.replace(story.environment, versions=found)


def inference_by_batch(story: Story, studies: list[Study]) -> None:
    """Images per second of each system's best configuration, over the batch size."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for study in studies:
        net, _, batch = study.workload.name.partition(" forward, batch ")
        for system in dict.fromkeys(e.system for e in study.timed if batch):
            best = study.best(system, "")
            assert best is not None
            rate = best.measurement(study.workload, "").items_per_s
            points.setdefault(net, {}).setdefault(system, []).append((float(batch), rate or 0.0))
    for net, systems in points.items():
        curves = [
            Curve(
                system,
                tuple(x for x, _ in pairs),
                tuple(y for _, y in pairs),
                system=system,
                workload=f"{net} forward",
            )
            for system, pairs in systems.items()
        ]
        x, y = Axis("images at once"), Axis("images per second")
        story.lines(f"{net} forward: images per second over the batch size", curves, x=x, y=y)


def all_in_one_table(story: Story, studies: list[Study]) -> None:
    """Every comparison in one table."""
    rows = [c.cells for study in studies for c in peers.comparisons(study)]
    if rows:
        story.heading("All workloads")
        story.text("A peer's time over JAX's: above 1 JAX is faster. The best configurations are compared.")
        story.grid(("workload", "JAX", "peer", "peer over JAX", "verdict"), rows, right=(3,))


def sentences(story: Story, studies: dict[str, Study]) -> None:
    """Check the chapter's sentences on every system that is available."""
    story.heading("The chapter's sentences, for every system")
    for system in dict.fromkeys(e.system for study in studies.values() for e in study.entries):
        found = peers.agreement(list(studies.values()), system)
        story.claim(
            ours=f"Every configuration of {system} computes what JAX does, outputs and losses",
            holds=found.agrees,
            predicted=found.tolerance,
            right=found.agrees,
            observed=found.seen,
        )
    if "8.1 MLP" in studies:
        hybridizing(story, studies["8.1 MLP"])
    for name, less, more, bound, sentence in (
        ("8.2 dot", "queued", "finished", 0.1, "the call returns long before the product is ready"),
        ("8.2 loop", "asynchronous", "synchronous", 1, "waiting once is faster than waiting each time"),
        ("8.3 products", "together", "apart", 1, "independent products on several devices run together"),
    ):
        for entry in studies[name].timed if name in studies else []:
            pair = (entry.measurement(studies[name].workload, q) for q in (less, more))
            found_ratio = ratio(*pair)
            story.claim(
                book=f"{entry.name}: {sentence}",
                holds=found_ratio.below(bound),
                predicted=f"{less} over {more} below {bound}",
                right=found_ratio.below(bound),
                observed=str(found_ratio),
            )


def hybridizing(story: Story, study: Study) -> None:
    """Check section 8.1.2's sentence on MXNet itself, and our prediction about JAX next to it."""
    rows = {e.configuration: e.measurement(study.workload, "") for e in study.timed if e.system == "mxnet"}
    if {"imperative", "hybridized"} <= rows.keys():
        found = ratio(rows["imperative"], rows["hybridized"])
        story.claim(
            book="MXNet: hybridizing makes the network faster (the book: 2.4 times)",
            holds=found.above(1),
            predicted="at least twice as fast",
            right=found.at_least(2),
            observed=f"{found} times as fast",
        )
    for c in peers.comparisons(study):
        if c.theirs.system == "mxnet":
            story.claim(
                ours=f"JAX's {c.ours.configuration} call costs less than MXNet's {c.theirs.configuration}",
                holds=negated(c.ratio.at_most(1)),
                predicted="MXNet over JAX above 1",
                right=c.ratio.above(1),
                observed=str(c.ratio),
            )
