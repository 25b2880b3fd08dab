"""Decoder-only transformers in torch, unit by unit, weight-compatible with Hugging Face."""
