"""The command `nestree`. Commands parse, call the library and print; heavy imports stand inside them."""

import typer

from nestree.cli import data, evaluate, predict, quantize, serve, show, train
from nestree.cli.runtime import Commands, Quiet, Verbose, Version, with_limits

app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def main(version: Version = False, verbose: Verbose = 0, quiet: Quiet = False) -> None:
    """Nested named entity recognition with exact inference over latent lexicalised trees.

    Exit codes: 0 all is well; 1 `check` found errors, or `predict` skipped something; 2 bad input or usage;
    130 interrupted.
    """


for command in (
    train.train,
    train.pretrain,
    train.distill,
    predict.predict,
    quantize.quantize,
    train.experiment,
    evaluate.analyze,
    show.show,
    data.convert,
    data.check,
    data.stats,
    data.split,
    evaluate.evaluate,
    data.formats,
    serve.serve,
    serve.label_config,
    show.demo,
):
    app.command()(with_limits(command))
