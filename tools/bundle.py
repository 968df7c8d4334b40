"""Collect what a machine without a network needs: wheels, Fashion-MNIST and the history.

    make bundle                                                          # this Python, CPU
    make bundle BUNDLE_ARGS="--python 3.12 --kind cuda12"                # a GPU node's
    make bundle BUNDLE_ARGS="--python 3.12 --have node.txt"              # without what the node has

The folder then holds `wheels/`, `data/`, `jaxperf.git` to clone, and `SHA256SUMS` of the files in the first
two. docs/offline.md says how to use it there.

uv chooses the versions for the target. pip downloads them, since uv cannot; by itself, pip would evaluate
environment markers for the Python it runs on (pypa/pip issue 11664).
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from jaxperf import flags
from jaxperf.data.download import fetch
from jaxperf.data.idx_folder import DEBIAN_FOLDER, named_folder
from jaxperf.errors import JaxperfError
from jaxperf.process import ended
from jaxperf.result.store import make_folder

ROOT = Path(__file__).resolve().parents[1]
EDITABLE = "editables~=0.3"  # what hatchling asks for beside itself when `make install` links the checkout
OLDEST_GLIBC = 5  # manylinux_2_5: the first that a wheel can name
HINT = "where that is about a line of --have, leave the line out: a wheel then comes along"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
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
        """Return what tells pip to choose wheels for it; a wheel for an older glibc fits too."""
        tags = [f"manylinux_2_{n}_{self.machine}" for n in range(self.glibc, OLDEST_GLIBC - 1, -1)]
        platforms = [f"--platform={tag}" for tag in (*tags, f"manylinux2014_{self.machine}")]
        return ["--only-binary=:all:", "--implementation=cp", f"--python-version={self.python}", *platforms]


def target_of(config: Config) -> Target:
    """Return the target that the flags describe.

    Raises:
      JaxperfError: no such version or tag can be.
    """
    if not re.fullmatch(r"3\.\d+", config.python):
        raise JaxperfError(f"--python is {config.python!r}; give a version such as 3.12")
    match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", config.platform)
    if not match:
        raise JaxperfError(f"--platform is {config.platform!r}; give a tag such as manylinux_2_28_x86_64")
    return Target(config.python, int(match[1]), match[2])


# --- which wheels


def build_requirements(root: Path = ROOT) -> list[str]:
    """Return what pip builds the link to the checkout with."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return [*project["build-system"]["requires"], EDITABLE]


def requirements(kind: str, root: Path = ROOT, *, dev: bool = True) -> list[str]:
    """Return what `make install` asks pip for; without `dev`, only what jaxperf runs with."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    cuda = extras[kind] if kind != "cpu" else []
    return [*project["dependencies"], *(extras["dev"] + extras["book"] if dev else ()), *cuda]


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


def usable_wheels(have: Mapping[str, str], lines: Iterable[str]) -> dict[str, str]:
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
    usable, folder = usable_wheels(have, [*lines, *build]), out / "wheels"
    make_folder(out, flag="--out")
    chosen = resolve([*lines, *build], target, usable)
    lacking = {name: version for name, version in chosen.items() if usable.get(name) != version}
    lacking |= resolve(build, target, chosen) if build else {}
    with tempfile.TemporaryDirectory(prefix=".wheels-", dir=out) as fresh:
        download(lacking, target, Path(fresh))
        make_folder(folder, flag="--out")
        for path in folder.glob("*.whl"):
            path.unlink()
        for path in Path(fresh).glob("*.whl"):
            path.rename(folder / path.name)
    return folder


def resolve(lines: Sequence[str], target: Target, have: Mapping[str, str]) -> dict[str, str]:
    """Return the version of each package that these lines lead to on the target, chosen by uv.

    Args:
      lines: requirements.
      target: whose Python and platform the environment markers describe.
      have: versions by name that the choice must agree with.

    Raises:
      JaxperfError: there is no choice; gives what uv says in one line.
    """
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    platform = f"--python-platform={target.machine}-manylinux_2_{target.glibc}"
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "have.txt")
        constraints.write_text("".join(f"{n}=={v}\n" for n, v in have.items()), encoding="utf-8")
        options = [
            "--no-build",
            platform,
            f"--python-version={target.python}",
            f"--constraints={constraints}",
            "-",
        ]
        text = run([*uv, *pip_settings(), *options], "uv", stdin="\n".join(lines), hint=HINT if have else "")
    pins = [Requirement(line) for line in text.splitlines() if line.strip()]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def pip_settings() -> list[str]:
    """Return the indexes that pip is set up with as flags of uv, which does not read pip's configuration."""
    names = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}
    listed = run([*PIP, "config", "list"], "pip")
    flags_of_uv = ["--no-index"] if re.search(r"\.no-index='(1|true)'", listed) else []
    for name, flag in names.items():
        for values in re.findall(rf"\.{name}='(.*)'", listed):
            flags_of_uv += [f"{flag}={value}" for value in values.replace("\\n", " ").split()]
    return ["--index-strategy=unsafe-best-match", *flags_of_uv]  # as pip chooses among indexes


def download(versions: Mapping[str, str], target: Target, folder: Path) -> None:
    """Have pip bring the wheels of these versions for the target into a folder.

    Raises:
      JaxperfError: it fails; gives what pip says in one line.
    """
    if versions:
        pins = [f"{name}=={version}" for name, version in versions.items()]
        run([*PIP, "download", "--quiet", "--no-deps", f"--dest={folder}", *target.options, *pins], "pip")


def run(command: Sequence[str], program: str, *, stdin: str = "", hint: str = "") -> str:
    """Run a program and return what it prints.

    Raises:
      JaxperfError: it fails; gives what it says in one line.
    """
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = re.findall(r"^ERROR: (.+)", done.stderr, re.MULTILINE)[:1] or [done.stderr]
        why = re.sub(r"^error: |[×╰─▶│]", " ", errors[0].strip())
        why = " ".join(why.split()).rstrip(".") or f"status {done.returncode}"
        raise JaxperfError(f"{program} finds no wheels: {why}" + (f"; {hint}" if hint else ""))
    return done.stdout


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


def git(*arguments: str) -> str:
    """Run git and return what it prints.

    Raises:
      JaxperfError: there is none, or it fails.
    """
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
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
    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
