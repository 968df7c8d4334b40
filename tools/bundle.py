"""Collect what a machine without a network needs: wheels, Fashion-MNIST and the newest commit.

    make bundle                                                  # this Python, CPU
    make bundle BUNDLE_ARGS="--python 3.12 --kind cuda12"        # a GPU node's
    make bundle BUNDLE_ARGS="--python 3.12 --have node.txt"      # without what the node has

The folder then holds `wheels/`, `data/`, `jaxperf.git` to clone, and `SHA256SUMS`; docs/offline.md says how
to use it. uv chooses the versions for the target, and pip downloads them, since uv cannot.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEBIAN_DATA = Path("/usr/share/datasets/fashion-mnist")
# What hatchling asks for beside itself when `make install` links the checkout
EDITABLE = "editables~=0.3"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def main() -> int:
    """Collect everything, and say what it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "bundle", help="folder that takes everything")
    parser.add_argument("--python", default="{}.{}".format(*sys.version_info), help="the target's version")
    parser.add_argument("--machine", default="x86_64", help="the target's processor (uname -m)")
    parser.add_argument("--glibc", type=int, default=28, help="28 for glibc 2.28 or newer (ldd --version)")
    parser.add_argument("--kind", choices=("cpu", "cuda12", "cuda13"), default="cpu", help="JAX's packages")
    parser.add_argument("--have", type=Path, help="what the target has: `pip list --format=freeze` there")
    parser.add_argument("--no-data", action="store_true", help="leave out Fashion-MNIST, 31 MB")
    flags = parser.parse_args()
    out = flags.out.absolute()
    (out / "wheels").mkdir(parents=True, exist_ok=True)

    print(f"commit {collect_history(out)} in {out / 'jaxperf.git'}", flush=True)
    if not flags.no_data:
        collect_data(out)
    have = dict(re.findall(r"^([\w.-]+)==([\w.!-]+)", flags.have.read_text(), re.M)) if flags.have else {}
    target = f"--python-version={flags.python}", f"{flags.machine}-manylinux_2_{flags.glibc}"
    wheels = collect_wheels(requirements(flags.kind), target, have, out / "wheels")
    write_sums(out)
    print(
        f"{wheels} wheels for Python {flags.python}, {flags.kind}: {out}; docs/offline.md says how to use it"
    )
    return 0


def requirements(kind: str, extras: Sequence[str] = ("chapter", "dev", "book")) -> list[str]:
    """Return what `make install` asks pip for, and what pip builds the link to the checkout with."""
    text = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    optional = text["project"]["optional-dependencies"]
    lines = [*text["build-system"]["requires"], EDITABLE, *text["project"]["dependencies"]]
    for extra in (*extras, *([] if kind == "cpu" else [kind])):
        lines += optional[extra]
    return [line for line in lines if not line.startswith("jaxperf")]


def collect_wheels(
    lines: Sequence[str],
    target: tuple[str, str],
    have: Mapping[str, str],
    folder: Path,
    only: Sequence[str] = (),
) -> int:
    """Bring the wheels that the target lacks, or `only` these, of versions that fit each other and `have`."""
    version, platform = target
    with tempfile.TemporaryDirectory() as scratch:
        known = Path(scratch, "have.txt")
        pins = [f"{name}=={number}\n" for name, number in have.items()]
        known.write_text("".join(pins), encoding="utf-8")
        compiled = run(
            [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate",
             "--no-build", "--index-strategy=unsafe-best-match", version, f"--python-platform={platform}",
             f"--constraints={known}", "-"],
            stdin="\n".join(lines),
        )  # fmt: skip
        chosen = dict(re.findall(r"^([\w.-]+)==([\w.!+-]+)", compiled, re.M))
        lacking = [f"{name}=={number}" for name, number in chosen.items() if have.get(name) != number]
        if only:
            lacking = [f"{name}=={chosen[name]}" for name in only if name in chosen]
        machine, glibc = platform.split("-")[0], int(platform.rsplit("_", 1)[1])
        tags = [f"--platform=manylinux_2_{n}_{machine}" for n in range(glibc, 4, -1)]
        tags += [f"--platform=manylinux2014_{machine}", "--only-binary=:all:", "--implementation=cp", version]
        run([*PIP, "download", "--quiet", "--no-deps", f"--dest={scratch}", *tags, *lacking])
        # The wheels of an earlier bundle stay until all the new ones are there
        for old in folder.glob("*.whl"):
            old.unlink()
        for wheel in Path(scratch).glob("*.whl"):
            shutil.move(wheel, folder / wheel.name)
    return len(lacking)


def collect_data(out: Path) -> None:
    """Bring Fashion-MNIST's four files into `out`/data: those of Debian's package, or a download."""
    (out / "data").mkdir(exist_ok=True)
    if DEBIAN_DATA.is_dir():
        for path in DEBIAN_DATA.glob("*.gz"):
            shutil.copy(path, out / "data" / path.name)
    else:
        code = "import pathlib, sys; from jaxperf.data import fetch; fetch(pathlib.Path(sys.argv[1]))"
        run([sys.executable, "-c", code, str(out / "data")])


def collect_history(out: Path) -> str:
    """Bring the newest commit into `out`/jaxperf.git, which can be cloned; return the commit."""
    folder = out / "jaxperf.git"
    run(["git", "init", "--quiet", "--bare", str(folder)])
    run(
        [
            "git",
            "-C",
            str(folder),
            "fetch",
            "--quiet",
            "--depth=1",
            "--force",
            ROOT.as_uri(),
            "HEAD:refs/heads/main",
        ]
    )
    run(["git", "-C", str(folder), "symbolic-ref", "HEAD", "refs/heads/main"])
    return run(["git", "-C", str(folder), "rev-parse", "--short=12", "main"]).strip()


def write_sums(out: Path) -> None:
    """Write SHA256SUMS of wheels and data, which `sha256sum -c` reads after the folder was carried."""
    paths = sorted(path for name in ("wheels", "data") for path in out.glob(f"{name}/*"))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out)}\n" for path in paths]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def run(command: Sequence[str], *, stdin: str | None = None) -> str:
    """Run a program and return what it prints; where it fails, end with what it says last."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split()[-60:]) or f"status {done.returncode}"
        raise SystemExit(f"error: {' '.join(command[:4])} fails: {said}")
    return done.stdout


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
