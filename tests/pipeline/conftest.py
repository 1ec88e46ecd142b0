"""A tiny model that finds something."""

import pytest

from nestree.model import Recognizer
from tests import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Recognizer:
    return tiny.learned(tiny.encoder(tmp_path_factory.mktemp("encoder") / "tiny"), updates=40)
