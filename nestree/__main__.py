"""The command `nestree`, which is also `python -m nestree`."""

import sys


def main() -> None:
    try:
        from nestree.cli import app
    except KeyboardInterrupt:  # Ctrl-C while modules are imported
        sys.exit(130)
    app(prog_name="nestree")


if __name__ == "__main__":
    main()
