"""Training: from annotated documents to a model directory.

`train` does it all (train.py): `make_corpus` makes sentences of documents (dataset.py), `fit` a model of them: epochs
(loop.py) of updates (step.py, cuda_graphs.py), saved in a run directory and reported to callbacks (run_dir.py).
`distill` adds teachers, `pretrain` continues the pretraining of an encoder, `experiment` trains many models.
"""

from nestree.training.callbacks import Callbacks, EpochEnd, Step
from nestree.training.dataset import Corpus, adapt_to_small_data, make_corpus
from nestree.training.train import TrainResult, fit, origin_of, save_scores, summary, train

__all__ = ["Callbacks", "Corpus", "EpochEnd", "Step", "TrainResult", "adapt_to_small_data", "fit"]
__all__ += ["make_corpus", "origin_of", "save_scores", "summary", "train"]
