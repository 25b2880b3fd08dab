"""A ModelSpec from a Hugging Face `config.json`, and a config.json of a ModelSpec.

Each family is a file in `families/`, or a declaration in a package of others. Keys that say nothing
about what is computed are left alone. A null stands for the default only where Transformers writes
it so itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratrain.describe.families import (
    arcee,
    baichuan,
    cohere,
    cohere2,
    ernie4_5,
    exaone4,
    falcon,
    gemma,
    gemma2,
    gemma3,
    glm,
    glm4,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gptj,
    granite,
    granitemoe,
    granitemoeshared,
    llama,
    mistral,
    mixtral,
    nemotron,
    olmo,
    olmo2,
    olmo3,
    olmoe,
    opt,
    phi,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from ratrain.describe.family import Family
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import nearest
from ratrain.errors import SpecError
from ratrain.plugins import Registry
from ratrain.readers.files import shown
from ratrain.readers.json import read_json_table
from ratrain.readers.place import Place

FAMILIES: Registry[Family] = Registry("family of models")
"""By their model_type, in the order in which they are tried for a model that names none."""
for _module in (
    *(llama, qwen2, mistral, qwen3, phi3, gemma, gemma2, gemma3, olmo2, gpt2, gpt_neox),
    *(baichuan, mixtral, qwen3_moe, smollm3, granite, olmo3, olmoe, seed_oss, stablelm),
    *(starcoder2, exaone4, glm, glm4, ernie4_5, opt, cohere, cohere2, phi, gptj, falcon),
    *(qwen2_moe, granitemoe, granitemoeshared, gpt_neo, gpt_bigcode, arcee, nemotron, olmo),
):
    FAMILIES.declare(_module.FAMILY.name, _module.FAMILY)

_HINTS = {
    "gemma3": "a model with pictures; its text part alone has the model_type gemma3_text",
    "mistral3": "a model with pictures; its text part alone has the model_type mistral",
    "gpt_oss": "scores beside those of tokens, and experts with biases",
    "qwen3_next": "layers with a state in place of attention",
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), "keys and values of few numbers, expanded"),
    **dict.fromkeys(("llama4", "llama4_text"), "attention in chunks, experts in some layers"),
    "bloom": "a norm behind its embedding",
}
"""What of well-known families that are not there these units do not compute."""


def load_config(path: Path | str) -> ModelSpec:
    """The model of a config.json file."""
    table, place = read_json_table(Path(path))
    return model_from_config(table, place)


def model_from_config(config: Mapping[str, Any], place: Place | None = None) -> ModelSpec:
    """The model of a parsed config. Keys that say nothing about what it computes are ignored."""
    place = place or Place("config.json", form="json")
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        hint = _HINTS.get(family, "") if isinstance(family, str) else ""
        what = f"model_type {shown(family)} is not supported" if family else "model_type is missing"
        raise SpecError(
            f"{what}: {hint}" if hint else what,
            place=str(place.at("model_type")),
            fix=nearest(str(family), FAMILIES),
        )
    read = FAMILIES[family].read(config, place)
    if read["head_dim"] is None:
        key = next((key for key in ("n_head", "num_heads") if key in config), None)
        read["head_dim"] = _head_dim(read["hidden"], read["heads"], key, place)
    name = _name_of(config, place.file, family)
    try:
        return ModelSpec(**read, name=name, family=family, source=place.file or "a config.json")
    except SpecError as error:  # numbers that contradict each other, by our name of the key
        where = place.at(_THEIR_KEYS.get(error.place, error.place))
        raise SpecError(error.what, place=str(where), fix=error.fix) from None


def family_of(model: ModelSpec) -> Family | None:
    """The family whose config can say what `model` is: its own, or the first that can, if any."""
    own = [FAMILIES[model.family]] if model.family in FAMILIES else []
    return next((family for family in (*own, *FAMILIES.values()) if _says(family, model)), None)


def require_family(model: ModelSpec) -> Family:
    """The same; SpecError where there is none."""
    family = family_of(model)
    if family is None:
        raise SpecError(
            "no Hugging Face family has this combination of pieces",
            place=f"model {model.name}, as {model.family}",
            fix="llama: qkv_bias = output_bias; qwen2: qkv_bias alone; "
            "baichuan: no bias, kv_heads = heads, head_dim = hidden / heads",
        )
    return family


def config_of(model: ModelSpec, end_id: int | None = None) -> dict[str, Any]:
    """A config.json of a model, for a tokenizer that ends texts with `end_id`; SpecError where no
    family can say it. A model of one's own says its name: its modules are in no folder."""
    if model.own:
        return {"model_type": model.family, "_name_or_path": model.name}
    family = require_family(model)
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        **family.write(model),
        **dict.fromkeys(("bos_token_id", "pad_token_id")),
        "eos_token_id": end_id,
    }


def _says(family: Family, model: ModelSpec) -> bool:
    """Whether what a family writes of a model reads as that model."""
    config = {"model_type": family.name, **family.write(model)}
    try:
        read = model_from_config(config)
    except SpecError:
        return False
    named = replace(read, name=model.name, family=model.family, source=model.source)
    return _computed(named) == _computed(model)


def _computed(model: ModelSpec) -> ModelSpec:
    """A model without what makes no difference: what is trained of it, the angles of positions that
    are not rotary."""
    model = model.base
    if model.position == "rope":
        return model
    plain = replace(model, rope_theta=1.0, rope_scaling=None)
    return replace(plain, rotary_share=1.0, rotary_pairs=False)


_THEIR_KEYS = {"kv_heads": "num_key_value_heads"}


def _head_dim(hidden: int, heads: int, key: str | None, place: Place) -> int:
    """The width of a head where the config does not give it. `key`: of the heads, where it is of a
    family that cannot give it."""
    if hidden % heads:
        divisors = [n for n in range(1, 2 * heads + 1) if hidden % n == 0]
        near = min(divisors, key=lambda n: abs(n - heads))
        raise SpecError(
            f"{heads} heads do not divide a hidden size of {hidden}",
            place=str(place.at(key or "num_attention_heads")),
            fix=f"use {near} heads" + ("" if key else ", or give head_dim"),
        )
    return hidden // heads


def _name_of(config: Mapping[str, Any], file: str, family: str) -> str:
    """What the config calls itself, else its folder's name."""
    name = config.get("_name_or_path")
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        name = Path(file).parent.name
    return name[-255:] or family
