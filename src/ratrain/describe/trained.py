"""The parameters of each unit of a model, and which of them are trained.

Patterns name parameters as a Hugging Face folder does (`model.layers.3.self_attn.q_proj.weight`).
A pattern is a run of whole parts of such a name, `*` and `?` standing for anything: "embed_tokens",
"layers.3", "q_proj", "mlp.*.weight", "*norm".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from ratrain.describe.family import Numbered, Packed
from ratrain.describe.huggingface import require_family
from ratrain.describe.model import ModelSpec
from ratrain.describe.own import name_in_files
from ratrain.describe.parameters import (
    CHOOSING,
    EXPERTS,
    LOGITS,
    Shapes,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from ratrain.describe.strict import nearest
from ratrain.describe.tuning import LoraSpec
from ratrain.errors import SpecError
from ratrain.readers.place import Place

EMBEDDING, HEAD = "e", "h"
LORA_A, LORA_B = "lora_a", "lora_b"

NARROWING = ("attention.output", "mlp.down")
"""Matrices that a tensor group divides by columns; it divides the others of a layer by rows."""
_TIED = ("embedding.tokens", LOGITS)


class Given(NamedTuple):
    """A parameter of a unit."""

    name: str
    shape: tuple[int, ...]
    trained: bool = True
    whole: bool = False  # on every rank of a tensor group; of adapters alone
    held: str | None = None  # in "int8" or "fp32", of a layer's that are frozen; None: as computed


class Adapter(NamedTuple):
    """The low-rank adapter of a matrix: the names of its A, which matrices that a file holds as one
    share, and of its B."""

    module: str
    a: str
    b: str


@lru_cache(maxsize=512)
def unit_parameters(model: ModelSpec, unit: str) -> tuple[Given, ...]:
    """All parameters of unit "e", "0" .. "L-1" or "h", adapters included."""
    shapes = _shapes(model, unit)
    if model.tuning is None:
        return tuple(Given(*each) for each in shapes)
    is_trained = _choice(model)
    given = [
        Given(name, shape, is_trained(unit, name), held=_held(model, unit, name, shape))
        for name, shape in shapes
    ]
    return (*given, *_adapter_parameters(model, unit, dict(shapes)))


@lru_cache(maxsize=512)
def adapters(model: ModelSpec, unit: str) -> tuple[Adapter, ...]:
    """The adapters of a unit: a layer's, in the order of its matrices."""
    lora = model.tuning and model.tuning.lora
    if not lora or model.own or unit in (EMBEDDING, HEAD):
        return ()
    family = require_family(model)
    made: list[Adapter] = []
    for name, shape in layer_parameters(model):
        module, _, kind = name.rpartition(".")
        if kind != "weight" or not _may_adapt(module, shape):
            continue
        theirs = family.tensors[module]
        first = theirs.of[0] if isinstance(theirs, Packed) else module
        if not lora.targets or _named(lora.targets, [_module_name(model, unit, module)]):
            made.append(Adapter(module, f"{first}.{LORA_A}", f"{module}.{LORA_B}"))
    return tuple(made)


def _may_adapt(module: str, shape: tuple[int, ...]) -> bool:
    """Whether a matrix of a layer may have an adapter: experts and what chooses them have none."""
    return len(shape) == 2 and module not in CHOOSING


def _held(model: ModelSpec, unit: str, name: str, shape: tuple[int, ...]) -> str | None:
    """In what a parameter is held, where adapters are trained beside 8-bit matrices: not those that
    choose words or experts."""
    lora = model.tuning and model.tuning.lora
    if not lora or lora.base is None or unit in (EMBEDDING, HEAD):
        return None
    return lora.base if len(shape) > 1 and name.removesuffix(".weight") not in CHOOSING else "fp32"


def is_adapter(parameter: str) -> bool:
    """Whether a parameter is one of an adapter's."""
    return parameter.endswith((f".{LORA_A}", f".{LORA_B}"))


def names_in_files(model: ModelSpec, unit: str, parameter: str) -> list[str]:
    """What Hugging Face's files call the tensor that holds a parameter; a tied matrix has the names
    of both of its ends, a stack those of all its matrices."""
    if model.own:
        return [name_in_files(unit, parameter)]
    if model.tied_embeddings and parameter in _TIED:
        tensors = require_family(model).tensors
        return [f"{tensors[module]}.weight" for module in _TIED]
    module, _, kind = parameter.rpartition(".")
    if kind not in ("weight", "bias"):
        module, kind = parameter, "weight"
    theirs = require_family(model).tensors[module]
    if isinstance(theirs, Numbered):
        assert model.experts is not None
        return [f"{theirs.tensor.format(unit, n)}.{kind}" for n in range(model.experts.count)]
    if module in EXPERTS:
        return [_module_name(model, unit, module)]
    return [f"{_module_name(model, unit, module)}.{kind}"]


def check_tuning(model: ModelSpec, place: Place) -> None:
    """Raises SpecError where patterns name nothing, or leave nothing to train. `place`: that of
    [train]."""
    tuning = model.tuning
    if tuning is None:
        return
    given = [key for key in ("freeze", "train_only", "lora") if getattr(tuning, key)]
    if len(given) > 1:
        raise SpecError(
            f"{given[0]} and {given[1]} both say what is trained",
            place=str(place.at(given[1])),
            fix="keep one of them: lora trains adapters alone",
        )
    if tuning.lora is not None and model.own:
        raise SpecError(
            f"{model.name} is made of modules of your own, which have no adapters",
            place=str(place.at("lora")),
            fix="use freeze or train_only, or write the adapters in your modules",
        )
    if tuning.lora is not None:
        _check_targets(model, tuning.lora, place)
        return
    names = {
        name
        for unit in _units(model)
        for parameter, _ in _shapes(model, unit)
        for name in names_in_files(model, unit, parameter)
    }
    for pattern in (*tuning.freeze, *tuning.train_only):
        if not _named((pattern,), names):
            raise SpecError(
                f'no parameter of {model.name} is named by "{pattern}"',
                place=str(place.at(given[0])),
                fix=nearest(pattern, _parts(names)),
            )
        _check_whole_stacks(model, pattern, str(place.at(given[0])))
    if not any(each.trained for unit in _units(model) for each in unit_parameters(model, unit)):
        raise SpecError(
            "every parameter is frozen: nothing is left to train",
            place=str(place.at(given[0])),
            fix="freeze less",
        )


def _check_whole_stacks(model: ModelSpec, pattern: str, place: str) -> None:
    """Experts of a layer are one parameter: all of them are trained, or none."""
    if model.experts is None:
        return
    for unit in map(str, range(model.layers)):
        for module in EXPERTS:
            names = names_in_files(model, unit, f"{module}.weight")
            meant = sum(_named((pattern,), [name]) for name in names)
            if 0 < meant < len(names):
                raise SpecError(
                    f'"{pattern}" names {meant} of the {len(names)} experts of a layer, '
                    "which are trained together",
                    place=place,
                    fix='name all of them: "experts"',
                )


def _check_targets(model: ModelSpec, lora: LoraSpec, place: Place) -> None:
    modules = {
        _module_name(model, str(layer), name.removesuffix(".weight"))
        for layer in range(model.layers)
        for name, shape in layer_parameters(model)
        if _may_adapt(name.removesuffix(".weight"), shape)
    }
    without = [
        name
        for parameter, shape in layer_parameters(model)
        if len(shape) > 1 and not _may_adapt(parameter.removesuffix(".weight"), shape)
        for name in names_in_files(model, "0", parameter)
    ]
    for pattern in lora.targets:
        if not _named((pattern,), modules) and _named((pattern,), without):
            raise SpecError(
                f'"{pattern}" names experts or their router, which have no adapters',
                place=str(place.at("lora", "targets")),
                fix="adapt attention's matrices: leave targets out, or name q_proj, k_proj, v_proj "
                "or o_proj",
            )
        if not _named((pattern,), modules):
            raise SpecError(
                f'no matrix of a layer of {model.name} is named by "{pattern}"',
                place=str(place.at("lora", "targets")),
                fix=nearest(pattern, dict.fromkeys(name.rpartition(".")[2] for name in modules)),
            )


def _units(model: ModelSpec) -> Iterator[str]:
    yield EMBEDDING
    yield from map(str, range(model.layers))
    yield HEAD


def _shapes(model: ModelSpec, unit: str) -> Shapes:
    if model.own:
        return model.own.shapes(unit)
    if unit == EMBEDDING:
        return embedding_parameters(model)
    return head_parameters(model) if unit == HEAD else layer_parameters(model)


def _choice(model: ModelSpec) -> Callable[[str, str], bool]:
    """Whether a parameter of a unit, which is no adapter's, is trained."""
    tuning = model.tuning
    assert tuning is not None
    patterns, wanted = tuning.freeze or tuning.train_only, bool(tuning.train_only)

    def is_trained(unit: str, name: str) -> bool:
        if tuning.lora is not None:
            return False
        return _named(patterns, names_in_files(model, unit, name)) == wanted

    return is_trained


def _adapter_parameters(
    model: ModelSpec, unit: str, shapes: dict[str, tuple[int, ...]]
) -> list[Given]:
    made: dict[str, Given] = {}
    for adapter in adapters(model, unit):
        assert model.tuning is not None
        assert model.tuning.lora is not None
        rank = model.tuning.lora.rank
        out, into = shapes[f"{adapter.module}.weight"]
        narrows = adapter.module in NARROWING
        made.setdefault(adapter.a, Given(adapter.a, (rank, into), whole=not narrows))
        made[adapter.b] = Given(adapter.b, (out, rank), whole=narrows)
    return list(made.values())


def _module_name(model: ModelSpec, unit: str, module: str) -> str:
    theirs = require_family(model).tensors[module]
    assert not isinstance(theirs, Numbered)
    return (theirs.tensor if isinstance(theirs, Packed) else theirs).format(unit)


def _named(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Whether any pattern is a run of whole parts of any of the names."""
    wanted = [form for p in patterns for form in (p, f"{p}.*", f"*.{p}", f"*.{p}.*")]
    return any(fnmatchcase(name, form) for name in names for form in wanted)


def _parts(names: Iterable[str]) -> list[str]:
    """What a pattern might be, of names: their modules, without numbers of layers."""
    modules = (part for name in names for part in name.split(".") if not part.isdecimal())
    return sorted(dict.fromkeys(modules))
