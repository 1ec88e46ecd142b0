"""One of two processes that train together: `python -m tests.treecrf.data_parallel RANK RENDEZVOUS_FILE OUT`."""

import sys

import torch
import torch.distributed
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from nestree.treecrf import LexicalPotentials, log_partition, use_backend


class Scorer(torch.nn.Module):
    """Potentials from word vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.pair = torch.nn.Bilinear(4, 4, 3)
        self.word = torch.nn.Linear(4, 1)

    def forward(self, words: Tensor, lengths: list[int]) -> Tensor:
        spans = self.pairs(torch.nn.functional.pad(words, (0, 0, 0, 1)))
        arcs, roots = self.pairs(words)[..., 1], self.word(words).squeeze(-1)
        with use_backend("numba"):
            return log_partition(LexicalPotentials(spans[..., 0], arcs, roots, spans[..., 2]), lengths).mean()

    def pairs(self, vectors: Tensor) -> Tensor:
        batch, size, width = vectors.shape
        left = vectors[:, :, None].expand(batch, size, size, width)
        return self.pair(left.contiguous(), left.transpose(1, 2).contiguous())


def data(rank: int) -> tuple[Tensor, list[int]]:
    words = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(rank))
    return words, [[6, 2, 5], [1, 4, 3]][rank]


def gradients(model: torch.nn.Module, rank: int) -> list[Tensor]:
    model(*data(rank)).backward()
    return [parameter.grad for parameter in model.parameters()]


if __name__ == "__main__":
    rank = int(sys.argv[1])
    torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    torch.save(gradients(DistributedDataParallel(Scorer()), rank), sys.argv[3])
    torch.distributed.destroy_process_group()
