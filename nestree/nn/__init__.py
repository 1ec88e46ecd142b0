"""The neural network: sentences -> scores."""

import os

import torch


def reset_after_fork() -> None:
    """Make PyTorch use one thread: OpenMP would wait forever for threads that only the parent process has.

    oneDNN ignores that number where it is built on Arm's library, so it is switched off.
    """
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # it would warn, and do the same


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reset_after_fork)
