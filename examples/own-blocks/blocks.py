import torch
from torch import nn
from torch.nn import functional

from ratrain.models.own import OwnModel, declare_model

HIDDEN, VOCAB = 64, 320


class First(nn.Module):  # token numbers [batch, tokens] to [batch, tokens, HIDDEN]
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)

    def forward(self, tokens):
        return self.words(tokens)


class Block(nn.Module):  # a causal convolution of each channel, a gate, an MLP
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.conv = nn.Conv1d(HIDDEN, HIDDEN, 8, groups=HIDDEN, padding=7)
        self.gate, self.out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        normed = self.norm1(x)
        mixed = self.conv(normed.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        x = x + self.out(mixed * torch.sigmoid(self.gate(normed)))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Last(nn.Module):  # that and targets [batch, tokens] to each token's loss
    def __init__(self):
        super().__init__()
        self.norm, self.words = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)

    def logits(self, x):  # for `ratrain sample`
        return self.words(self.norm(x))

    def forward(self, x, targets):
        logits = self.logits(x).flatten(0, 1).float()
        return functional.cross_entropy(logits, targets.flatten(), reduction="none")


declare_model("convolutions", OwnModel(First, Block, Last, layers=4, hidden=HIDDEN, vocab=VOCAB))
