"""Text or sentences in, the same with entities out.

sentences.py   sentences -> sentences with entities: batches of like length, order kept
threads.py     batches on several threads of a CPU
windows.py     sentences too long for a chart, in windows that overlap, merged
texts.py       Pipeline: text -> documents; streams of texts; what is known before
"""

from nestree.nn.devices import best_device
from nestree.pipeline.sentences import by_length, decoding_with, predict
from nestree.pipeline.texts import Pipeline, load

__all__ = ["Pipeline", "best_device", "by_length", "decoding_with", "load", "predict"]
