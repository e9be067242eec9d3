"""`align`: what is released, where it came from, what came from it, and the decisions only a person can take.

It reads the catalog alone (ALIGN_CATALOG_URL), so it answers also when MLflow, Airflow or the cluster are away; `estimate`
reads a recipe, `pin` a folder.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from include.cli import bundling, deciding, fetching, planning, pruning, seeing, verifying
from include.domain.errors import AlignmentError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 done, 1 refused with the reason on stderr, 2 wrong usage."""
    options = _parser().parse_args(argv)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except AlignmentError as error:
        print(f"align: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="align", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for group in (seeing, deciding, planning, fetching, pruning, verifying, bundling):
        group.add_to(commands)
    return parser
