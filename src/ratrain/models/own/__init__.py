"""Models made of a user's own `nn.Module` classes (docs/how-to/own-blocks.md)."""

from ratrain.models.own.declared import OwnModel, declare_model

__all__ = ["OwnModel", "declare_model"]
