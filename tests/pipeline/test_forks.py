"""A process that has used threads is forked, as `multiprocessing` and spaCy do it: the child must not wait for ever."""

import multiprocessing

import pytest
import torch

from nestree.pipeline import Pipeline

TEXT = "The mayor of Lisbon met the president."


def read(ner, answer):
    answer.send([(entity.text, entity.label) for entity in ner(TEXT).entities])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_reads_what_its_parent_reads(model):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ner = Pipeline(model)
        expected = [(entity.text, entity.label) for entity in ner(TEXT).entities]
        torch.nn.functional.linear(torch.ones(999, 256), torch.ones(256, 256))  # surely on two threads
        torch.ones(999, 999).exp()
        mine, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=read, args=(ner, theirs))
        child.start()
        child.join(60)
        alive = child.is_alive()
        child.kill()
        assert not alive
        assert mine.poll()
        assert mine.recv() == expected
    finally:
        torch.set_num_threads(threads)
