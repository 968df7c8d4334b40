"""`%%jaxperf`: the compilations, waits and seconds of one notebook cell.

%load_ext jaxperf

%%jaxperf
state = step(state, batch)
"""

from __future__ import annotations

from typing import Any

from jaxperf.errors import JaxperfError, to_one_line

OPTIONS = {"": True, "--no-profile": False}


def run_cell(line: str, cell: str, shell: Any) -> None:
    """Run a cell under `jaxperf.watch()`, which prints its report below the cell.

    Args:
      line: the words after `%%jaxperf`: nothing, or `--no-profile`.
      cell: the source of the cell.
      shell: IPython's shell; the cell's names become the notebook's.
    """
    from jaxperf.watch import watch

    if line.strip() not in OPTIONS:
        print(to_one_line(f"error: %%jaxperf takes --no-profile or nothing, not {line.strip()!r}"))
        return
    try:
        with watch("this cell", profile=OPTIONS[line.strip()]):
            shell.run_cell(cell)
    except JaxperfError as e:  # another watch is open
        print(to_one_line(f"error: {e}"))


def load_ipython_extension(shell: Any) -> None:
    """Define `%%jaxperf` in a notebook; IPython calls this for `%load_ext jaxperf`."""

    def jaxperf(line: str, cell: str) -> None:
        """Show the compilations, waits and seconds of this cell; `--no-profile` does not look at devices."""
        run_cell(line, cell, shell)

    shell.register_magic_function(jaxperf, magic_kind="cell")
