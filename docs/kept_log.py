"""The command line of the scripts that make a page from a log that is kept."""

import argparse
import shutil
from pathlib import Path


def keep_log(words: list[str], description: str | None, kept: Path) -> bool:
    """Keep the log that a command line names, if any; return whether the page is only to be checked.

    Args:
      words: the command line.
      description: what `--help` prints.
      kept: the file in which the log is kept.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", nargs="?", type=Path, help="a log to keep first")
    parser.add_argument("--check", action="store_true", help="only compare the page with the kept log")
    options = parser.parse_args(words)
    if options.log and not options.check:
        if not options.log.is_file():
            parser.error(f"{options.log} is no file")
        shutil.copyfile(options.log, kept)
    return bool(options.check)
