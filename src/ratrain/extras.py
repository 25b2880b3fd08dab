"""The optional packages that come with `pip install "ratrain[EXTRA]"`."""

from __future__ import annotations

from importlib.util import find_spec

from ratrain.errors import SpecError

_EXTRA = {
    "torch": "train",
    "safetensors": "train",
    "tokenizers": "train",
    "pyarrow": "train",
    "cryptography": "tls",
}


def missing_extra(error: ImportError, place: str) -> SpecError | None:
    """What to say of an optional package that is not installed; None where the error is another."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRA:
        return None
    return SpecError(
        f"needs the package {package}, which is not installed",
        place=place,
        fix=f'pip install "ratrain[{_EXTRA[package]}]"',
    )


def require_package(package: str) -> None:
    """What an import of a missing package raises, without the time that the import takes."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
