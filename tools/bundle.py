"""Collect what a machine without a network needs: wheels, Fashion-MNIST and the history.

    make bundle                                                          # this Python, CPU
    make bundle BUNDLE_ARGS="--python 3.12 --kind cuda12"                # a GPU node's
    make bundle BUNDLE_ARGS="--python 3.12 --have node.txt"              # without what the node has

The folder then holds `wheels/`, `data/`, `jaxperf.git` to clone, and `SHA256SUMS` of the files in the first
two. docs/offline.md says how to use it there.

pip resolves and downloads. It chooses wheels for the target, but evaluates environment markers such as
`; python_version < "3.12"` for the Python it runs on (pypa/pip issue 11664). So what it chose is checked
against the target's markers, and what is missing is asked for by name.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.processes.exit_status import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Annotated, Literal

import tyro
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from jaxperf.chapter.run_sections import make_folder
from jaxperf.cli import flags
from jaxperf.data.download import fetch
from jaxperf.data.idx_folder import DEBIAN_FOLDER, named_folder
from jaxperf.errors import JaxperfError
from jaxperf.processes.exit_status import ended

ROOT = Path(__file__).resolve().parents[1]
EDITABLE = "editables~=0.3"  # what hatchling asks for beside itself when `make install` links the checkout
OLDEST_GLIBC = 5  # manylinux_2_5: the first that a wheel can name
HINT = "where that is about a line of --have, leave the line out: a wheel then comes along"
MB = 1e6


@dataclass(frozen=True)
class Config:
    """For which machine, and where to."""

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = ROOT / "bundle"
    """Folder that takes everything, in place of what an earlier bundle has put there."""
    python: Annotated[str, tyro.conf.arg(metavar="X.Y")] = ".".join(map(str, sys.version_info[:2]))
    """The target's version of Python."""
    platform: Annotated[str, tyro.conf.arg(metavar="TAG")] = "manylinux_2_28_x86_64"
    """The target's platform: its glibc (`ldd --version`) and its processor (`uname -m`)."""
    kind: Literal["cpu", "cuda12", "cuda13"] = "cpu"
    """Whether JAX's packages for CUDA come too."""
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


def build_requirements(root: Path = ROOT) -> list[str]:
    """Return what pip builds the link to the checkout with."""
    told = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return [*told["build-system"]["requires"], EDITABLE]


def requirements(kind: str, root: Path = ROOT) -> list[str]:
    """Return what `make install` asks pip for."""
    told = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = told["optional-dependencies"]
    return [*told["dependencies"], *extras["dev"], *extras["book"], *(extras[kind] if kind != "cpu" else [])]


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


def collect_wheels(
    lines: Sequence[str], target: Target, have: Mapping[str, str], out: Path, *, build: Sequence[str] = ()
) -> Path:
    """Bring into `out`/wheels what the target lacks, of versions that fit each other and what it has.

    What `build` leads to comes along even if the target has it: pip builds in an environment of its own.

    Raises:
      JaxperfError: no index has them; the wheels of an earlier bundle stay.
    """
    lines = [*lines, *build]
    use, asked, folder = kept(have, lines), list(lines), out / "wheels"
    make_folder(out, flag="--out")
    while True:
        with tempfile.TemporaryDirectory(prefix=".wheels-", dir=out) as fresh:
            found = download(asked, target, use, Path(fresh))
            lacking = [str(r) for r in missing(lines, found, use, target)]
            if not lacking:
                make_folder(folder, flag="--out")
                for path in folder.glob("*.whl"):
                    path.unlink()
                wheels = {name_of(path): path for path in found}
                always = {canonicalize_name(r.name) for r in reached(build, wheels, target)}
                for name, path in wheels.items():
                    if name in always or use.get(name) != version_of(path):
                        path.rename(folder / path.name)
                return folder
        if set(lacking) <= set(asked):
            raise JaxperfError(f"the indexes have no wheels that fit together: {', '.join(lacking)}")
        asked += lacking


def download(lines: Sequence[str], target: Target, have: Mapping[str, str], folder: Path) -> list[Path]:
    """Have pip choose wheels for the target and bring them into a folder, those of what it has too.

    Raises:
      JaxperfError: it fails; gives what it says in one line.
    """
    constraints = folder / "have.txt"
    constraints.write_text("".join(f"{n}=={v}\n" for n, v in have.items()), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "download"]
    words = [f"--dest={folder}", f"--constraint={constraints}", *target.options, *lines]
    done = subprocess.run(
        [*pip, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        said = re.findall(r"^ERROR: (.+)", done.stderr, re.MULTILINE) or done.stderr.splitlines()[-1:]
        why = said[0].rstrip(".") if said else f"status {done.returncode}"
        raise JaxperfError(f"pip finds no wheels: {why}" + (f"; {HINT}" if have else ""))
    return sorted(folder.glob("*.whl"))


def name_of(wheel: Path) -> str:
    """Return the normalized name of a wheel's package."""
    return parse_wheel_filename(wheel.name)[0]


def version_of(wheel: Path) -> str:
    """Return the version of a wheel's package."""
    return str(parse_wheel_filename(wheel.name)[1])


def requirements_of(wheel: Path) -> list[str]:
    """Return what a wheel's metadata requires, with markers."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        metadata = BytesHeaderParser().parsebytes(archive.read(name))
    return [str(line) for line in metadata.get_all("Requires-Dist", [])]


def missing(
    lines: Iterable[str], found: Iterable[Path], have: Mapping[str, str], target: Target
) -> Iterator[Requirement]:
    """Yield what the target would still ask an index for: no such package, or of another version."""
    wheels = {name_of(path): path for path in found}
    versions = {**have, **{name: version_of(path) for name, path in wheels.items()}}
    for requirement in reached(lines, wheels, target):
        version = versions.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            yield requirement


def reached(lines: Iterable[str], wheels: Mapping[str, Path], target: Target) -> Iterator[Requirement]:
    """Yield what these lines, and the wheels that they lead to, require on the target, without markers."""
    todo, seen = [(Requirement(line), "") for line in lines], set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({**target.environment, "extra": extra}):
            continue
        requirement.marker = None
        yield requirement
        name = canonicalize_name(requirement.name)
        for each in {"", *requirement.extras}:
            if name in wheels and (name, each) not in seen:
                seen.add((name, each))
                todo += [(Requirement(line), each) for line in requirements_of(wheels[name])]


# --- data and history


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


def size_of(folder: Path) -> str:
    """Return the number of files in a folder, and their size."""
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return f"{len(sizes)} files, {sum(sizes) / MB:.0f} MB"


def write_sums(out: Path) -> None:
    """Write SHA256SUMS of wheels and data, which `sha256sum -c` reads after the folder was carried."""
    paths = sorted(path for name in ("wheels", "data") for path in out.glob(f"{name}/*"))
    lines = []
    for path in paths:
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.relative_to(out)}\n")
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def main(config: Config) -> int:
    """Collect everything, and say what it is.

    Raises:
      JaxperfError: a flag that cannot be, no network, or no wheels for the target.
    """
    target, out = target_of(config), config.out.absolute()
    have = read_have(config.have) if config.have else {}
    print(f"commit {collect_history(out)} in {out / 'jaxperf.git'}", flush=True)
    if git("-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"):
        print("changes that are not committed are not in it", flush=True)
    if config.data:
        print(f"data: {size_of(collect_data(out))}", flush=True)
    print(f"downloading wheels for Python {target.python}, {config.platform}, {config.kind}", flush=True)
    lines, build = requirements(config.kind), build_requirements()
    print(f"wheels: {size_of(collect_wheels(lines, target, have, out, build=build))}", flush=True)
    write_sums(out)
    print(f"bundle: {out}; docs/offline.md says how to use it")
    return 0


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.given(Config, __doc__ or ""))))
