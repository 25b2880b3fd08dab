"""The text form: a program as a person reads it, which parses back to an equal program."""

from ratrain.program.text.read import read_any, read_text
from ratrain.program.text.write import write_text

__all__ = ["read_any", "read_text", "write_text"]
