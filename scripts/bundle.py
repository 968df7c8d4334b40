"""Collect what a machine without a network needs: wheels, Fashion-MNIST and the history.

    make bundle                                                          # this Python, CPU
    make bundle BUNDLE_ARGS="--python 3.12 --kind cuda12"                # a GPU node's
    make bundle BUNDLE_ARGS="--python 3.12 --have node.txt"              # without what the node has

The folder then holds `wheels/`, `data/`, `jaxperf.git` to clone, and `requirements.txt` with the SHA-256 of
every wheel. docs/offline.md says how to use it there.

pip resolves and downloads. It chooses wheels for the target, but evaluates environment markers such as
`; python_version < "3.12"` for the Python it runs on (pypa/pip issue 11664). So what it chose is checked
against the target's markers, and what is missing is asked for by name.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from jaxperf import flags
from jaxperf.data.download import fetch
from jaxperf.data.folder import DEBIAN_FOLDER, named_folder
from jaxperf.errors import JaxperfError
from jaxperf.exits import ended
from jaxperf.launch import make_folder

ROOT = Path(__file__).resolve().parents[1]
EDITABLE = "editables~=0.3"  # what hatchling asks for beside itself when `make install` links the checkout
OLDEST_GLIBC = 5  # manylinux_2_5: the first that a wheel can name
HINT = "where that is about a line of --have, leave the line out: a wheel then comes along"
MB = 1e6


@dataclass(frozen=True)
class Config:
    """For which machine, and where to."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = ROOT / "bundle"
    """Folder that takes everything; made again, it keeps what still fits."""
    python: Annotated[str, tyro.conf.arg(metavar="X.Y")] = ".".join(map(str, sys.version_info[:2]))
    """The target's version of Python."""
    platform: Annotated[str, tyro.conf.arg(metavar="TAG")] = "manylinux_2_28_x86_64"
    """The target's platform: its glibc (`ldd --version`) and its processor (`uname -m`)."""
    kind: Literal["cpu", "cuda12"] = "cpu"
    """Whether JAX's packages for CUDA come too, which are gigabytes."""
    have: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """What the target has already, as `pip list --format=freeze` prints it there; it is left out."""
    data: bool = True
    """Whether Fashion-MNIST comes too, 31 MB; the subset in the package always does."""


@dataclass(frozen=True)
class Target:
    """The machine that the wheels are for: its Python, and its glibc and processor."""

    python: str
    glibc: int
    machine: str

    @property
    def options(self) -> list[str]:
        """What tells pip to choose wheels for it; a wheel for an older glibc fits too."""
        tags = [f"manylinux_2_{n}_{self.machine}" for n in range(self.glibc, OLDEST_GLIBC - 1, -1)]
        platforms = [f"--platform={tag}" for tag in (*tags, f"manylinux2014_{self.machine}")]
        return ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.python}", *platforms]

    @property
    def environment(self) -> dict[str, str]:
        """What environment markers see there; of the versions, the patch is unknown."""
        known = {"python_version": self.python, "python_full_version": f"{self.python}.0"}
        known |= {"implementation_version": f"{self.python}.0", "implementation_name": "cpython"}
        known |= {"platform_python_implementation": "CPython", "os_name": "posix", "sys_platform": "linux"}
        known |= {"platform_system": "Linux", "platform_machine": self.machine}
        return {**{k: str(v) for k, v in default_environment().items()}, **known}


@dataclass(frozen=True)
class Chosen:
    """One package that pip chose for the target."""

    name: str
    version: str
    sha256: str
    requires: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def target_of(config: Config) -> Target:
    """The target that the flags describe.

    Raises:
      JaxperfError: no such version or tag can be.
    """
    if not re.fullmatch(r"3\.\d+", config.python):
        raise JaxperfError(f"--python is {config.python!r}; give a version such as 3.12")
    found = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", config.platform)
    if not found:
        raise JaxperfError(f"--platform is {config.platform!r}; give a tag such as manylinux_2_28_x86_64")
    return Target(config.python, int(found[1]), found[2])


# --- which wheels


def wanted(kind: str, root: Path = ROOT) -> list[str]:
    """Return what `make install` asks pip for, and what pip needs to build the checkout's link."""
    told = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [*told["project"]["dependencies"], *told["project"]["optional-dependencies"]["dev"]]
    lines += [*told["build-system"]["requires"], EDITABLE]
    if kind != "cpu":
        stated = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
        lines += [line for line in stated if line and not line.startswith("#")]
    return lines


def read_have(path: Path) -> dict[str, str]:
    """Return what a machine has, version by name, from what `pip list --format=freeze` printed.

    The local part of a version (+cu128) is left out: it names who built it, and no index has it.

    Raises:
      JaxperfError: the file cannot be read, or a line is not NAME==VERSION.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as e:
        raise JaxperfError(f"--have {path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    have: dict[str, str] = {}
    for line in filter(None, lines):
        name, pinned, version = line.partition("==")
        if not pinned or not re.fullmatch(r"[\w.-]+", name) or not re.fullmatch(r"[\w.+!-]+", version):
            raise JaxperfError(
                f"--have {path}: {line[:60]!r} is not NAME==VERSION; write it with `pip list --format=freeze`"
            )
        have[canonicalize_name(name)] = version.split("+")[0]
    return have


def kept(have: Mapping[str, str], lines: Iterable[str]) -> dict[str, str]:
    """Return what of `have` we can use; newer wheels of the others go into the bundle."""
    refused = {
        canonicalize_name(r.name)
        for r in map(Requirement, lines)
        if (version := have.get(canonicalize_name(r.name)))
        and not r.specifier.contains(version, prereleases=True)
    }
    return {name: version for name, version in have.items() if name not in refused}


def choose(lines: Sequence[str], target: Target, have: Mapping[str, str]) -> list[Chosen]:
    """Return the packages that the target lacks, of versions that fit each other and what it has.

    Raises:
      JaxperfError: no index has them.
    """
    use, asked = kept(have, lines), list(lines)
    while True:
        try:
            found = resolve(asked, target, use)
        except JaxperfError as e:
            raise JaxperfError(f"{e}; {HINT}" if use else str(e)) from None
        lacking = [str(r) for r in missing(lines, found, use, target)]
        if not lacking:
            return [c for c in found if use.get(c.name) != c.version]
        if set(lacking) <= set(asked):
            raise JaxperfError(f"the indexes have no wheels that fit together: {', '.join(lacking)}")
        asked += lacking


def resolve(lines: Sequence[str], target: Target, have: Mapping[str, str]) -> list[Chosen]:
    """Have pip choose wheels for the target; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder, "have.txt"), Path(folder, "report.json")
        pins = [f"{name}=={version}\n" for name, version in have.items()]
        constraints.write_text("".join(pins), encoding="utf-8")
        words = ["install", "--dry-run", f"--target={folder}", f"--report={report}"]
        pip([*words, f"--constraint={constraints}", *target.options, *lines])
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [chosen(each["metadata"], each["download_info"]) for each in found]


def chosen(metadata: Mapping[str, Any], download: Mapping[str, Any]) -> Chosen:
    """Return what an entry of pip's report says."""
    sha256 = download["archive_info"].get("hashes", {}).get("sha256", "")
    name, requires = canonicalize_name(metadata["name"]), tuple(metadata.get("requires_dist", ()))
    return Chosen(name, metadata["version"], sha256, requires)


def missing(
    lines: Iterable[str], found: Iterable[Chosen], have: Mapping[str, str], target: Target
) -> Iterator[Requirement]:
    """Yield what the target would still ask an index for: no such package, or of another version."""
    there, environment = {c.name: c for c in found}, target.environment
    versions = {**have, **{c.name: c.version for c in there.values()}}
    todo, seen = [(Requirement(line), "") for line in lines], set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in versions or not requirement.specifier.contains(versions[name], prereleases=True):
            requirement.marker = None  # it holds there, whatever it is here
            yield requirement
        for each in {"", *requirement.extras}:
            if name in there and (name, each) not in seen:
                seen.add((name, each))
                todo += [(Requirement(line), each) for line in there[name].requires]


# --- collecting


def collect_wheels(found: Sequence[Chosen], target: Target, out: Path) -> Path:
    """Bring the wheels into `out`/wheels, each with the SHA-256 that was resolved; delete others there."""
    folder, stated = out / "wheels", out / "requirements.txt"
    make_folder(folder, flag="--out")
    lines = [f"{each} --hash=sha256:{each.sha256}\n" for each in sorted(found, key=str)]
    stated.write_text("".join(lines), encoding="utf-8")
    pip(["download", "--no-deps", f"--dest={folder}", *target.options, "--require-hashes", "-r", str(stated)])
    fresh = {(c.name, Version(c.version)) for c in found}
    for wheel in folder.glob("*.whl"):
        if parse_wheel_filename(wheel.name)[:2] not in fresh:
            wheel.unlink()
    return folder


def pip(words: Sequence[str]) -> None:
    """Run this Python's pip.

    Raises:
      JaxperfError: it fails; gives what it says in one line.
    """
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        said = re.findall(r"^ERROR: (.+)", done.stderr, re.MULTILINE) or done.stderr.splitlines()[-1:]
        why = said[0].rstrip(".") if said else f"status {done.returncode}"
        raise JaxperfError(f"pip {words[0]} fails: {why}")


def collect_data(out: Path) -> Path:
    """Bring Fashion-MNIST's four files into `out`/data, from a folder of this machine or a download."""
    folder = out / "data"
    make_folder(folder, flag="--out")
    fetch(cache=folder, folder=named_folder() or DEBIAN_FOLDER)
    return folder


def collect_history(out: Path, root: Path = ROOT) -> str:
    """Bring the newest commit into `out`/jaxperf.git, which can be cloned; returns the commit.

    Raises:
      JaxperfError: this is no checkout of ours.
    """
    if not (root / ".git").exists():
        raise JaxperfError(f"{root} is no git checkout; clone one and bundle there")
    folder = out / "jaxperf.git"
    make_folder(out, flag="--out")
    git("init", "--quiet", "--bare", str(folder))
    git("-C", str(folder), "fetch", "--quiet", "--depth=1", "--force", root.as_uri(), "HEAD:refs/heads/main")
    git("-C", str(folder), "symbolic-ref", "HEAD", "refs/heads/main")
    return git("-C", str(folder), "rev-parse", "--short=12", "main")


def git(*words: str) -> str:
    """Run git and return what it prints.

    Raises:
      JaxperfError: there is none, or it fails.
    """
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError as e:
        raise JaxperfError(f"git does not start: {e.strerror}; install it") from None
    if done.returncode:
        raise JaxperfError(f"git fails: {' '.join(done.stderr.split())}")
    return done.stdout.strip()


def megabytes(folder: Path) -> str:
    """Return the number of files in a folder, and their size."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return f"{len(files)} files, {sum(path.stat().st_size for path in files) / MB:.0f} MB"


def main(config: Config) -> int:
    """Collect everything, and say what it is.

    Raises:
      JaxperfError: a flag that cannot be, no network, or no wheels for the target.
    """
    target, out = target_of(config), config.out.absolute()
    lines = wanted(config.kind)
    have = read_have(config.have) if config.have else {}
    print(f"commit {collect_history(out)} in {out / 'jaxperf.git'}", flush=True)
    if git("-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"):
        print("changes that are not committed are not in it", flush=True)
    if config.data:
        print(f"data: {megabytes(collect_data(out))}", flush=True)
    print(f"choosing wheels for Python {target.python}, {config.platform}, {config.kind}", flush=True)
    found = choose(lines, target, have)
    print(f"downloading {len(found)} wheels", flush=True)
    print(f"wheels: {megabytes(collect_wheels(found, target, out))}", flush=True)
    print(f"bundle: {out}; docs/offline.md says how to use it")
    return 0


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.parse(Config, args=sys.argv[1:], prog="bundle.py"))))
