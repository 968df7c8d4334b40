"""Run jobs of jobs.toml, each in an environment of its own: `jobs.py [change | nightly | NAME...]`.

It needs Python 3.11 or newer, and uv, which makes the environments. `jobs.py --list WHEN` prints the names as
JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
# A browser, the images, network namespaces, what torch.compile calls, and a real SLURM
DEBIAN = [
    "chromium", "dataset-fashion-mnist", "make", "git", "g++", "iproute2", "slurmctld", "slurmd",
    "slurm-client", "munge",
]  # fmt: skip

Job = dict[str, Any]


def main(words: list[str]) -> int:
    """Run the jobs that the words name; return 0 if all succeed."""
    jobs: dict[str, Job] = tomllib.loads((ROOT / ".ci" / "jobs.toml").read_text(encoding="utf-8"))
    if words[:1] == ["--list"]:
        print(json.dumps(chosen(jobs, words[1:])))
        return 0
    names = chosen(jobs, words or ["change"])
    install_debian_packages()
    began, failed = time.monotonic(), []
    # Most of an installation is waiting for the network, so one job's tests run while the next are installed
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(max_workers=1) as installer:
        installed = {name: installer.submit(install, name, jobs[name], scratch) for name in names}
        for name in names:
            job_began = time.monotonic()
            print(f"=== {name}", flush=True)
            well, output = installed[name].result()
            print(output, end="", flush=True)
            well = well and run_commands(jobs[name]["run"], variables_of(name, jobs[name], scratch))
            ending = "ok" if well else "FAILED"
            print(f"=== {name}: {ending}, {time.monotonic() - job_began:.0f} s", flush=True)
            if not well:
                failed.append(name)
    print(f"=== {len(names)} jobs in {time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def chosen(jobs: dict[str, Job], words: list[str]) -> list[str]:
    """Return the names of the jobs that the words name; a word that names none ends with one line."""
    names: list[str] = []
    for word in words:
        if word == "nightly":
            names += jobs
        elif word == "change":
            names += [name for name, job in jobs.items() if job["when"] == "change"]
        elif word in jobs:
            names.append(word)
        else:
            raise SystemExit(f"error: no job {word!r}; there are change, nightly, {', '.join(jobs)}")
    return list(dict.fromkeys(names))


def install_debian_packages() -> None:
    """Install what is missing, as root on Debian; elsewhere the tests that need it say so."""
    query = ["dpkg-query", "--show", "--showformat=${Status}"]
    missing = [package for package in DEBIAN if "ok installed" not in output_of([*query, package])]
    if missing and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-q"], check=True)
        install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
        subprocess.run(install, check=True)


def install(name: str, job: Job, scratch: str) -> tuple[bool, str]:
    """Make the job's environment; return whether that succeeded, and what it printed."""
    show = 'python -c "import sys, jax; print(sys.version.split()[0], jax.__version__)"'
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        try:
            commands = [*install_commands(job, environment_folder(name), scratch), show]
            well = run_commands(commands, variables_of(name, job, scratch), output)
        except SystemExit as error:
            return False, f"{error}\n"
        output.seek(0)
        return well, output.read()


def run_commands(commands: list[str], variables: dict[str, str], output: TextIO | None = None) -> bool:
    """Run commands one after the other until one fails; return whether all succeeded."""
    for command in commands:
        print(f"--- {command}", file=output, flush=True)
        bash = ["bash", "-euo", "pipefail", "-c", command]
        errors = None if output is None else subprocess.STDOUT
        done = subprocess.run(
            bash, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, check=False
        )
        if done.returncode:
            return False
    return True


def environment_folder(name: str) -> Path:
    """Return where a job's environment lies."""
    return ROOT / f".venv-ci-{name}"


def variables_of(name: str, job: Job, scratch: str) -> dict[str, str]:
    """Return the environment variables of a job's commands."""
    folder = environment_folder(name)
    variables = dict(os.environ)
    variables |= {"VENV": str(folder), "SCRATCH": scratch, "JAXPERF_COMPILED": f"{scratch}/compiled"}
    return variables | {"PATH": f"{folder}/bin:{os.environ['PATH']}"} | job.get("env", {})


def install_commands(job: Job, folder: Path, scratch: str) -> list[str]:
    """Return the commands that make the job's environment."""
    python = find_python(job["python"])
    if job["install"] == "make":
        return [f"make --silent install VENV={folder} PYTHON={python}"]
    uv = f"{sys.executable} -m uv"
    commands = [f"{uv} venv --quiet --clear --seed --python {python} {folder}"]
    packages = list(job.get("packages", []))
    if job["install"] == "wheel":
        commands.append(f"{uv} build --quiet --wheel --out-dir {scratch}/dist .")
        packages += [f'"$(echo {scratch}/dist/jaxperf-*.whl)[chapter]"']
    elif job["install"] == "core":
        packages += ["--editable ."]
        if job.get("lowest"):
            packages += ["--requirements pyproject.toml", "--resolution lowest-direct"]
    else:
        packages += [f"--editable .[{job['install']}]"]
    # make takes an environment as it is if this file is newer than pyproject.toml
    install = f"{uv} pip install --quiet --python {folder}/bin/python {' '.join(packages)}"
    return [*commands, f"{install} && touch {folder}/.installed-cpu"]


def find_python(version: str) -> str:
    """Return the path of an interpreter of this version that really runs (a pyenv shim may not)."""
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv"), "versions").expanduser()
    places = sorted(versions.glob(f"{version}.*/bin/python{version}"))
    for candidate in [f"python{version}", *map(str, places)]:
        path = output_of([candidate, "-c", "import ensurepip, sys; print(sys.executable)"]).strip()
        if path:
            return path
    raise SystemExit(f"error: there is no Python {version} here, which this job needs")


def output_of(command: list[str]) -> str:
    """Return what a command prints; "" if it fails or does not start."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
