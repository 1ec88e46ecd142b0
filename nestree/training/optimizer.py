"""AdamW with one learning rate for the encoder and one for the rest, and their schedule; SAM and FGM."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

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
        fused=all(parameter.device.type in ("cpu", "cuda") for parameter in model.parameters()),
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


class Perturbation:
    """SAM on all weights of the encoder, or FGM on its subword embeddings.

    A second pass computes gradients at weights that are moved by `rho` along their normalized gradient.
    """

    def __init__(self, transformer: Any, parameters: Sequence[Tensor], settings: TrainingSettings) -> None:
        fgm = settings.perturbation == "fgm"
        weights = [transformer.get_input_embeddings().weight] if fgm else transformer.parameters()
        self.weights: list[Tensor] = [weight for weight in weights if weight.requires_grad]
        self.parameters, self.rho = parameters, settings.rho
        # Buffers for copies of these weights and of the gradients of the first pass.
        self.original_weights = [torch.empty_like(weight) for weight in self.weights]
        self.first_gradients = [torch.empty_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def add_gradients(self, run_pass: Callable[[], object]) -> None:
        """Add the gradients at perturbed weights; `run_pass` computes those of all parameters at the current ones."""
        torch._foreach_copy_(self.original_weights, self.weights)
        torch._foreach_copy_(self.first_gradients, gradients_of(self.parameters))
        perturbations = gradients_of(self.weights)  # scaled in place: the next pass clears them
        norm = torch.stack(torch._foreach_norm(perturbations)).norm().clamp(min=1e-12)
        torch._foreach_mul_(perturbations, self.rho / norm)
        torch._foreach_add_(self.weights, perturbations)
        try:
            run_pass()
        finally:
            torch._foreach_copy_(self.weights, self.original_weights)
        torch._foreach_add_(gradients_of(self.parameters), self.first_gradients)


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
