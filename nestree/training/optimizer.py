"""How weights move: two rates, warm-up and decay, the limit on gradients, and the average of weights over time."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nestree.config import TrainingSettings
from nestree.errors import TrainingError


def make_optimizer(model: nn.Module, pretrained: nn.Module, settings: TrainingSettings) -> torch.optim.AdamW:
    """AdamW with rates for the layers of the pretrained encoder and one for the rest; biases and norms do not decay."""
    rates = encoder_param_groups(pretrained, settings)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            key = rates.get(id(parameter), settings.lr), parameter.ndim > 1
            groups.setdefault(key, []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "lr": rate,
                "peak": rate,
                "weight_decay": settings.weight_decay if decays else 0.0,
            }
            for (rate, decays), parameters in groups.items()
        ],
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=all(parameter.is_cuda for parameter in model.parameters()),
    )


def encoder_param_groups(network: nn.Module, settings: TrainingSettings) -> dict[int, float]:
    """The peak rate of each weight of the pretrained encoder, by its id: embeddings lie below the first layer."""
    depths = {id(weight): depth(name) for name, weight in network.named_parameters()}
    top = max((each for each in depths.values() if each is not None), default=0)
    if top < 2 and settings.layer_decay != 1:
        raise TrainingError(
            f"training.layer_decay is {settings.layer_decay}, and this encoder has no layers that can be told apart "
            "by the names of their weights. Set it to 1."
        )
    return {
        number: settings.encoder_lr * settings.layer_decay ** (0 if each is None else top - each)
        for number, each in depths.items()
    }


def depth(name: str) -> int | None:
    """Which layer a weight belongs to, by its name: 0 for embeddings; None: to none, such as a norm above them all.

    >>> depth("encoder.layer.11.output.dense.weight"), depth("embeddings.word_embeddings.weight")
    (12, 0)
    >>> depth("encoder.block.3.layer.1.DenseReluDense.wi.weight"), depth("h.5.attn.c_attn.weight")
    (4, 6)
    >>> depth("final_norm.weight")
    """
    layer = re.search(r"(?:^|\.)(\d+)\.", name)  # the first number: parts of a layer may have further ones
    if layer:
        return int(layer.group(1)) + 1
    return 0 if "embed" in name else None


def lr_schedule(epochs: float, settings: TrainingSettings) -> float:
    """The rate after so many epochs, as a share of its peak: up during warm-up, then down to 0, in straight lines."""
    if epochs < settings.warmup_epochs:
        return epochs / settings.warmup_epochs
    return max(0.0, (settings.epochs - epochs) / max(settings.epochs - settings.warmup_epochs, 1e-9))


def set_lr(optimiser: torch.optim.Optimizer, share: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = group["peak"] * share


class Average:
    """An exponential average of the weights; the first updates weigh less, so that the start is soon forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()} if decay else {}

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        """After so many updates of the weights."""
        if self.decay:
            decay = min(self.decay, updates / (updates + 10))
            now = [parameter.detach() for parameter in model.parameters()]
            torch._foreach_lerp_(list(self.weights.values()), now, 1 - decay)

    @torch.no_grad()
    def swap(self, model: nn.Module) -> None:
        """Exchange the average and the weights of the model; twice is as before."""
        for name, parameter in model.named_parameters() if self.decay else ():
            kept = parameter.detach().clone()
            parameter.copy_(self.weights[name])
            self.weights[name].copy_(kept)


def optimizer_state(optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """What the optimiser remembers, by the names of parameters."""
    found = {}
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            for what, value in optimiser.state.get(parameter, {}).items():
                found[f"{what}/{names[id(parameter)]}"] = value
    return found


def load_optimizer_state(
    optimiser: torch.optim.Optimizer, names: Mapping[int, str], found: Mapping[str, Tensor]
) -> None:
    """Let the optimiser remember it again."""
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            state: dict[str, Any] = {}
            for what in ("step", "exp_avg", "exp_avg_sq"):
                value = found.get(f"{what}/{names[id(parameter)]}")
                if value is not None:
                    fused_step = what == "step" and group["fused"]
                    moves = what != "step" or fused_step
                    state[what] = value.to(parameter.device) if moves else value.cpu()
            if state:
                optimiser.state[parameter] = state
