"""Public environments, as their lock files pin them: installing jaxperf changes none of their packages.

`tests/fixtures/environments.json` has 22 repositories on GitHub that train or sample with JAX and have a lock
file: their commit, the Python that they require, and the versions of the packages that matter here.
"""

import json
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = json.loads((ROOT / "tests/fixtures/environments.json").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = [Requirement(line) for line in PROJECT["dependencies"]]
PYTHONS = [f"3.{minor}" for minor in range(8, 15)]
# Their JAX is older than the bound (or, with Python 3.10, their Python), so that pip would replace it
TOO_OLD = {"google-deepmind/penzai", "kazewong/flowMC", "vwxyzjn/cleanrl"}


def changes(pins, requirements):
    """What pip would change: a locked version that a requirement does not allow. What is absent, it adds."""
    found = [(r, pins[r.name]) for r in requirements if r.name in pins]
    return [f"{r.name} {pin} is not {r.specifier}" for r, pin in found if not r.specifier.contains(pin, True)]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_locked_environment_accepts_the_light_core_unchanged(name):
    environment = ENVIRONMENTS[name]
    both = SpecifierSet(environment["requires_python"]) & SpecifierSet(PROJECT["requires-python"])
    pythons = [*both.filter(PYTHONS)]
    accepts = bool(pythons) and not changes(environment["pins"], CORE)
    assert accepts == (name not in TOO_OLD), (pythons, changes(environment["pins"], CORE))


def test_at_least_19_of_22_accept_it_and_few_would_with_the_chapter():
    """The second half shows that the test can fail: the chapter needs newer packages than most have."""
    chapter = [Requirement(line) for line in PROJECT["optional-dependencies"]["chapter"]]
    assert len(ENVIRONMENTS) - len(TOO_OLD) >= 19
    assert sum(not changes(environment["pins"], CORE + chapter) for environment in ENVIRONMENTS.values()) < 10
