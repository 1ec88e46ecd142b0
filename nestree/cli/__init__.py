"""The command `nestree`. Commands parse, call the library and print; heavy imports stand inside them."""

import typer

from nestree.cli import data, evaluate, predict, serve, show, train
from nestree.cli.options import Version, expand_options
from nestree.cli.runtime import Command, Commands

app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def main(version: Version = False) -> None:
    """Nested named entity recognition with exact inference over latent lexicalised trees.

    Exit codes: 0 all is well; 1 `check` found errors, or `predict` skipped something; 2 bad input or usage;
    130 interrupted.
    """


app.callback()(expand_options(main))
for command in (
    train.train,
    train.pretrain,
    train.distill,
    predict.predict,
    predict.select,
    predict.quantize,
    predict.export,
    train.experiment,
    evaluate.evaluate,
    evaluate.analyze,
    show.show,
    data.convert,
    data.check,
    data.stats,
    data.split,
    data.formats,
    serve.serve,
    serve.label_config,
    show.demo,
):
    app.command(cls=Command)(expand_options(command))
