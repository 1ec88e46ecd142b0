"""Training: from annotated documents to a model directory, in a loop one can read.

`corpus` makes sentences of documents, `train` makes a model of them. The order of things, by file: `batches` (which
sentences make an update), `update` (its gradients), `optimiser` (how weights move), `loop` (epochs), `state` and
`folder` (what is on the disk), `stopping` (Ctrl-C), `watching` (what is told on the way), `summary` (at the end).
`distill` has teachers beside gold.
"""

from nestree.training.callbacks import Callbacks, EpochEnd, Step
from nestree.training.dataset import Corpus, corpus, for_small_data
from nestree.training.train import TrainResult, keep_scores, origin_of, summary, train

__all__ = [
    "Callbacks",
    "Corpus",
    "EpochEnd",
    "Step",
    "TrainResult",
    "corpus",
    "for_small_data",
    "keep_scores",
    "origin_of",
    "summary",
    "train",
]
