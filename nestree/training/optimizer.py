"""AdamW with one learning rate for the encoder and one for the rest, and their schedule."""

import torch
from torch import nn

from nestree.config import TrainingSettings

BETA1 = 0.9  # of AdamW
CLIP_NORM = 5.0  # largest norm of the gradient


def make_optimizer(model: nn.Module, pretrained: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW for `model`, of which `pretrained` is the encoder. Biases and norms have no weight decay."""
    encoder = {id(parameter) for parameter in pretrained.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            lr = settings.encoder_lr if id(parameter) in encoder else settings.lr
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            groups.setdefault((lr, decay), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": p, "lr": lr, "peak": lr, "weight_decay": decay} for (lr, decay), p in groups.items()],
        betas=(BETA1, settings.beta2),
        eps=settings.epsilon,
        fused=all(parameter.is_cuda for parameter in model.parameters()),
    )


def lr_schedule(epochs: float, settings: TrainingSettings) -> float:
    """The learning rate after so many epochs, relative to its peak: linear warmup, then linear decay to 0."""
    if epochs < settings.warmup_epochs:
        return epochs / settings.warmup_epochs
    return max(0.0, (settings.epochs - epochs) / max(settings.epochs - settings.warmup_epochs, 1e-9))


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every learning rate to `factor` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor
