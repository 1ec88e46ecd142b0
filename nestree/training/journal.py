"""What training leaves behind for programs: JSON lines, and TensorBoard's files on request."""

from dataclasses import asdict
from pathlib import Path

from nestree.errors import TrainingError
from nestree.training.folder import Folder
from nestree.training.watching import EpochEnd, Step


class Journal:
    """Notes epochs and what the user should know in the log of a run."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def note(self, text: str, updates: int) -> None:
        self.folder.note("note", updates=updates, text=text)

    def step(self, step: Step) -> None: ...

    def epoch(self, end: EpochEnd) -> None:
        self.folder.note("epoch", **asdict(end))


class TensorBoard:
    """Curves of losses and scores, by epoch."""

    def __init__(self, folder: Path, after: int) -> None:
        """Curves from epoch `after` on are drawn anew."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise TrainingError(
                "TensorBoard is asked for and not installed. Install it with `pip install tensorboard`."
            ) from None
        self.writer = SummaryWriter(str(folder), purge_step=after + 1)

    def note(self, text: str, updates: int) -> None:
        self.writer.add_text("note", text, updates)

    def step(self, step: Step) -> None: ...

    def epoch(self, end: EpochEnd) -> None:
        values = {
            "dev/precision": end.precision,
            "dev/recall": end.recall,
            "dev/f1": end.f1,
            "time/epoch": end.seconds,
            **{f"loss/{name}": value for name, value in end.losses.items()},
        }
        for name, value in values.items():
            self.writer.add_scalar(name, value, end.epoch)
        self.writer.flush()
