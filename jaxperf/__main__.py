"""`python -m jaxperf` is `jaxperf`."""

from jaxperf.process import end_at_once


def main() -> int:
    """Run the command line; Ctrl-C is quiet from the first moment, while the rest is imported."""
    end_at_once()
    from jaxperf import cli

    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
