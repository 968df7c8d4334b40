"""`python -m jaxperf` is `jaxperf`."""

from jaxperf.process import end_at_once


def main() -> int:
    """Run the command line; Ctrl-C is quiet from the first moment, while the rest is imported."""
    end_at_once()
    from jaxperf.cli import command_line

    return command_line.main()


if __name__ == "__main__":
    raise SystemExit(main())
