"""The command `nestree`. Commands parse, call the library and print; heavy imports stand inside them."""

import typer

from nestree.cli import (
    adapting,
    analysis,
    data,
    demo,
    distilling,
    experiment,
    learning,
    predicting,
    scoring,
    showing,
    shrinking,
    splitting,
)
from nestree.cli.options import with_limits
from nestree.cli.running import Commands, Quiet, Verbose, Version

app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def main(version: Version = False, verbose: Verbose = 0, quiet: Quiet = False) -> None:
    """Nested named entity recognition with exact inference over latent lexicalised trees.

    Exit codes: 0 all is well; 1 `check` found errors, or `predict` skipped something; 2 bad input or usage;
    130 interrupted.
    """


for command in (
    learning.train,
    adapting.adapt,
    distilling.distill,
    predicting.predict,
    shrinking.shrink,
    experiment.experiment,
    analysis.analyse,
    showing.show,
    data.convert,
    data.check,
    data.stats,
    splitting.split,
    scoring.evaluate,
    data.formats,
    demo.demo,
):
    app.command()(with_limits(command))
