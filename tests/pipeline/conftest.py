"""A tiny model that finds something."""

import pytest
import torch

from nestree.model import Recognizer
from tests import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Recognizer:
    folder = tiny.encoder(tmp_path_factory.mktemp("encoder") / "tiny")
    torch.manual_seed(3)
    made = Recognizer(tiny.settings("default", f"encoder.path={folder}"), tiny.LABELS, folder)
    optimiser = torch.optim.AdamW(made.parameters(), 5e-3)
    for _ in range(40):
        optimiser.zero_grad()
        made.losses(made.collate(tiny.SENTENCES)).total.backward()
        optimiser.step()
    return made.eval()
