"""`%%jaxperf`, after `%load_ext jaxperf`: the compilations, waits and seconds of one notebook cell."""

from typing import Any

from jaxperf.errors import JaxperfError, to_one_line


def load_ipython_extension(shell: Any) -> None:
    """Define `%%jaxperf` in a notebook; IPython calls this for `%load_ext jaxperf`."""
    from IPython.core.error import UsageError

    def jaxperf(line: str, cell: str) -> None:
        """Show the compilations, waits and seconds of this cell; `--no-profile` does not look at devices."""
        from jaxperf.watch import watch

        option = line.strip()
        if option not in ("", "--no-profile"):
            raise UsageError(to_one_line(f"%%jaxperf takes --no-profile or nothing, not {option!r}"))
        try:
            with watch("this cell", profile=not option):
                outcome = shell.run_cell(cell)
        except JaxperfError as e:
            raise UsageError(to_one_line(str(e))) from None
        if error := outcome.error_before_exec or outcome.error_in_exec:
            shown = to_one_line(f"{type(error).__name__}: {error}")
            error._render_traceback_ = lambda: [shown]  # IPython asks an exception for this
            raise error

    shell.register_magic_function(jaxperf, magic_kind="cell")
