"""`python -m jaxperf` is `jaxperf`."""

from jaxperf.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
