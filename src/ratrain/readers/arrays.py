"""Arrays of numbers in .npy files, mapped rather than read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratrain.errors import SpecError
from ratrain.readers.files import check_name, check_regular, shown, unreadable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

KINDS = {"whole numbers": "iu", "numbers": "iuf", "whole numbers or true and false": "iub"}


def map_array(path: Path, kind: str, dimensions: int) -> npt.NDArray[Any]:
    """The file's array, of which the system reads what is looked at; a SpecError says what it is
    else. `kind`: one of `KINDS`."""
    import numpy as np

    check_name(path)
    try:
        check_regular(path, path.stat().st_mode)
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise SpecError(
            f"is no array that can be read: {shown(str(error))}",
            place=str(path),
            fix="write it with numpy.save",
        ) from None
    if not hasattr(array, "dtype") or array.dtype.kind not in KINDS[kind]:
        have = getattr(array, "dtype", "several arrays")
        raise SpecError(f"holds {have}, not {kind}", place=str(path), fix=f"save {kind}")
    if array.ndim != dimensions:
        raise SpecError(
            f"has {array.ndim} dimensions, not {dimensions}",
            place=str(path),
            fix=f"save an array of {dimensions} dimensions",
        )
    return array
