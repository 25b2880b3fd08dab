"""How to train: the optimizer, its schedule, the data, what is saved and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from ratrain.describe.amounts import (
    BelowOne,
    Count,
    FileName,
    Fraction,
    Message,
    Name,
    Natural,
    NotNegative,
    Part,
    Positive,
    Seed,
    Steps,
    TimeS,
)
from ratrain.describe.optimizers import (
    OPTIMIZERS,
    USUAL_OPTIMIZER,
    AdamKeys,
    Optimizer,
    optimizer_named,
)
from ratrain.describe.runs_on import AS_CLUSTER, runs_on_named
from ratrain.describe.strict import FURTHER, Further, Rule
from ratrain.describe.tuning import LoraSpec, Tuning
from ratrain.errors import SpecError

TLS_OFF, TLS_BY_SECRET = "off", "secret"
SOCKETS, DIRECT = "sockets", "direct"
LossScale = Annotated[float, Rule(low=1e-12, high=1e18)]


def _keys_of(table: Mapping[str, Any]) -> type[Any]:
    """The keys of the optimizer that a table names; of one that is not known, the usual ones."""
    name = str(table.get("optimizer", USUAL_OPTIMIZER))
    return OPTIMIZERS[name].keys if name in OPTIMIZERS else AdamKeys


def _all_keys() -> Mapping[str, type[Any]]:
    return {name: optimizer.keys for name, optimizer in OPTIMIZERS.items()}


@dataclass(frozen=True)
class TrainSpec:
    """The optimizer and its learning rate over a number of steps. File table: [train]."""

    steps: Steps = 100  # the run's length, and that of the learning rate's schedule
    learning_rate: Positive = 3e-4  # the highest, after the warm-up
    # how it falls: at once from the warm-up on, or ("wsd") in the last part of the steps alone
    rate_schedule: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    warmup_steps: Natural = 0  # linear, from zero
    final_rate: Part = 0.1  # of the learning rate, at the last step; not for "constant"
    decay_part: Fraction = 0.2  # of the steps, the last ones, in which "wsd" falls linearly
    # of each layer's additions to the residual, and of the embedding, what is set to zero: by
    # where it is in the run, so the same in every layout; a config.json's own rates are not read
    dropout: BelowOne = 0.0
    weight_decay: NotNegative = 0.1  # of matrices; vectors (norms, biases) do not decay
    # "adamw", "adamw-8bit", "sgd", "lion", "adafactor", "muon" or one of a plugin's; it brings keys
    # of its own
    optimizer: Name = USUAL_OPTIMIZER
    # the optimizer's own keys, which stand in the same table
    keys: Any = field(default=None, metadata={FURTHER: Further(_keys_of, _all_keys)})
    # of an outer step, Nesterov's, by what replicas learnt since a unit's last mean (DiLoCo);
    # needs averages "early-start"; left out: none, their mean is where they go on
    outer_learning_rate: Positive | None = None
    outer_momentum: Part = 0.9  # of the outer step
    clip_norm: Positive | None = None  # left out: no clipping, and no barrier for it
    loss_scale: LossScale = 65536.0  # fp16 only: where the dynamic loss scale begins
    overflow: Literal["step", "unit"] = "step"  # fp16 only: what skips its update, all or a unit
    seed: Seed = 0  # of the initial weights and of the order of samples
    weights: FileName | None = None  # a Hugging Face folder to start from; left out: random
    # parameters that nobody updates, by names or patterns as a Hugging Face folder has them:
    # "embed_tokens", "layers.3", "*norm"
    freeze: tuple[Name, ...] = ()
    train_only: tuple[Name, ...] = ()  # the only ones that are updated, in the same way
    # weight of the experts' balance in the loss; left out: as the model's config.json says
    balance_loss: NotNegative | None = None
    lora: LoraSpec | None = None  # adapters are trained, the model's own weights are not
    validate_every: Natural = 0  # steps; 0: after the last one alone, where [data] has validation
    # steps after which the model goes on with prompts, with its likeliest words; 0: never
    sample_every: Natural = 0
    prompts: tuple[Message, ...] = ()
    prompts_file: FileName | None = None  # more of them, a line each
    sample_tokens: Count = 40  # of each; as many forward passes of a micro-batch
    # steps after which processes that follow the run get its weights (`ratrain.follow`); 0: never
    publish_every: Natural = 0
    # from where they leave: "loopback", "all", or interfaces or addresses with commas between them
    publish_nics: Name = "loopback"
    # what is sent between hosts: "off": as it is; "secret": under TLS 1.3, for whoever proves the
    # run's secret; or so with certificates too, of a folder that each host has at this path
    tls: FileName = "off"
    # what carries tensors between ranks: "sockets": connections of our own, for a device with
    # memory of its own staged in host memory; "direct": a communicator of torch.distributed, NCCL
    # between GPUs and gloo between others, with which a rank sends one thing after the other
    network: Literal["sockets", "direct"] = "sockets"
    timeout_s: TimeS = 300.0  # for which a rank waits for a silent peer; 300s
    # what all ranks compute on, as [[device]] runs_on; auto: as the cluster file says of each
    device: Name = AS_CLUSTER
    # on a GPU, where a rank computes whole replicas: compute is recorded and replayed (CUDA
    # graphs); their memory is under the budget's limit, but not in the proof
    graphs: bool = True
    share_gpu: bool = False  # several ranks of a host may compute on one GPU

    def __post_init__(self) -> None:
        kind = optimizer_named(self.optimizer).keys
        if self.device != AS_CLUSTER:
            runs_on_named(self.device, "device")
        if self.tls not in (TLS_OFF, TLS_BY_SECRET) and not self.tls.startswith("/"):
            raise SpecError(
                f"{self.tls!r} is no way to encrypt",
                place="tls",
                fix=f'use "{TLS_BY_SECRET}", "{TLS_OFF}", or the path of a folder, from / on',
            )
        if self.network == DIRECT:
            self._require_direct()
        if self.keys is None:
            object.__setattr__(self, "keys", kind())

    def _require_direct(self) -> None:
        """Refuses a communicator beside what it cannot have."""
        in_the_way = {
            "torch.distributed encrypts nothing": ("tls", self.tls != TLS_OFF),
            "a communicator takes each GPU once": ("share_gpu", self.share_gpu),
        }
        for what, (key, is_set) in in_the_way.items():
            if is_set:
                fix = f'leave {key} out, or set network = "{SOCKETS}"'
                raise SpecError(what, place="network", fix=fix)

    @property
    def tuning(self) -> Tuning | None:
        """What is trained of the model; None: everything."""
        tuning = Tuning(self.freeze, self.train_only, self.lora)
        return None if tuning == Tuning() else tuning

    @property
    def rule(self) -> Optimizer:
        """The optimizer."""
        return OPTIMIZERS[self.optimizer]


@dataclass(frozen=True)
class DataSpec:
    """Where tokens come from. File table: [data]."""

    files: tuple[FileName, ...]  # names or patterns, relative to the job file; or URLs (s3://...)
    tokenizer: FileName = "bytes"  # or a tokenizer.json of Hugging Face
    text_key: str = "text"  # of JSON lines and Parquet
    # of conversations, lists of messages: the tokenizer's chat template writes them as text, of
    # which the assistant's answers alone count; usually "messages"
    messages_key: Name | None = None
    shuffle: bool = True  # the order follows from `seed`
    validation: tuple[FileName, ...] = ()  # held-out files: named, read and tokenised like `files`

    def __post_init__(self) -> None:
        if not self.files:
            raise SpecError("names no file", place="files", fix="give at least one file")


@dataclass(frozen=True)
class CheckpointSpec:
    """When the state is saved. File table: [checkpoint]."""

    every: Natural = 0  # steps; 0: only at the end
    keep: Count = 2  # complete ones
    disks: Literal["shared", "per-host"] = "shared"  # whether all hosts see one run folder
