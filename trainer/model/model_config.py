"""The interface between trainer and model; gpt2.py implements it for GPT-2.

A model's class derives from `ModelConfig`, and registry.py names it. No other file of the trainer
knows a model's tensors by name.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from ladder.core.common.errors import LadderError
from trainer.model.calls import Buffer, Call

Self = TypeVar("Self", bound="ModelConfig")


@dataclass(frozen=True)
class Parameter:
    """A tensor that is trained.

    stacked    the first dimension counts layers
    decay      weight decay applies to it
    deviation  its first values are normal with this deviation and mean 0; if 0, all are `value`
    """

    shape: tuple[int, ...]
    stacked: bool = False
    decay: bool = False
    deviation: float = 0.0
    value: float = 0.0


@dataclass(frozen=True)
class HuggingFaceFormat:
    """How Hugging Face's safetensors and config.json hold a model (huggingface.py).

    model_type  what config.json calls the model
    class_name  the class in transformers that loads it
    prefix      of the tensors' names in files that were saved from that class
    tensors     parameter -> (name of its tensor without the prefix, with {} for a layer's number;
                whether the file holds the matrix transposed)
    tied        name of a tensor that may be in a file -> that of the parameter that it equals
    ignored     a regular expression for other tensors that may be in a file and are no parameters
    fields      field of the model's config -> key in config.json
    dropouts    key in config.json -> field of the model's config; written, but not read
    """

    model_type: str
    class_name: str
    prefix: str
    tensors: Mapping[str, tuple[str, bool]]
    tied: Mapping[str, str]
    ignored: str
    fields: Mapping[str, str]
    dropouts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LlmcFormat:
    """How llm.c's binary files hold a model (llmc_files.py): two magic numbers, and the fields of
    the model's config in the order of the header. The tensors follow in the model's own order."""

    model_magic: int
    state_magic: int
    fields: tuple[str, ...]


Format = TypeVar("Format", HuggingFaceFormat, LlmcFormat)


def format_in(form: Format | None, whose: str) -> Format:
    """The format of a model in another program's files. Raises LadderError where it has none."""
    if form is None:
        raise LadderError(
            f"{whose}'s files hold GPT-2's architecture only, and this model has another; keep "
            "the checkpoint of the run (-n), which trains on and samples"
        )
    return form


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """A model at one size, as JSON in checkpoints.

    context       the longest sequence
    vocab         the number of tokens
    padded_vocab  the number of columns of the logits; weights from `vocab` on are 0 and stay so
    dropout       the probability with which an activation is zeroed
    attention_dropout  the same of a probability inside attention
    """

    context: int
    vocab: int
    padded_vocab: int
    dropout: float = 0.0
    attention_dropout: float = 0.0

    hugging_face: ClassVar[HuggingFaceFormat | None] = None
    llmc: ClassVar[LlmcFormat | None] = None

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """The tensors that are trained, by name, in the order in which files hold them."""

    @abstractmethod
    def activations(self, B: int, T: int, *, training: bool, recompute: int) -> dict[str, Buffer]:
        """The buffers of kind "activation" and "scratch" that the passes need besides `logits`.

        recompute: see program.build.
        """

    @abstractmethod
    def forward(self, B: int, T: int, buffers: Mapping[str, Buffer], dropout: bool) -> list[Call]:
        """`tokens` (B, T) to `logits` (B, T, padded_vocab). dropout: whether it acts."""

    @abstractmethod
    def backward(self, B: int, T: int, buffers: Mapping[str, Buffer]) -> list[Call]:
        """`logits`, which hold their own gradient by then, to "d" + name of every parameter; these
        accumulate."""

    @abstractmethod
    def flops_per_token(self, T: int) -> int:
        """FLOPs of the forward and backward pass of one token in a sequence of T, as in PaLM."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The model's size in words: "12 layers, 12 heads, 768 channels"."""

    @property
    def has_dropout(self) -> bool:
        """Whether a training step differs from an evaluation."""
        return self.dropout > 0 or self.attention_dropout > 0

    def without_dropout(self: Self) -> Self:
        """The same model, whose training steps are without dropout."""
        return dataclasses.replace(self, dropout=0.0, attention_dropout=0.0)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter, padded and stacked."""
        return {name: parameter.shape for name, parameter in self.parameters().items()}

    def unpadded_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every parameter without the padding of the vocabulary."""
        return dataclasses.replace(self, padded_vocab=self.vocab).parameter_shapes()

    def with_vocab(self: Self, vocab: int) -> Self:
        """The same model for `vocab` tokens, padded to a multiple of 128."""
        return dataclasses.replace(self, vocab=vocab, padded_vocab=padded(vocab))

    def refusal(self) -> str | None:
        """Why the config is invalid; None if it is valid."""
        for entry in dataclasses.fields(self):
            size = getattr(self, entry.name)
            if entry.name in ("dropout", "attention_dropout"):
                if not isinstance(size, int | float) or not 0 <= size < 1:
                    return f"{entry.name} is {size!r}, not a number from 0 to below 1"
            elif type(size) is not int or size < 1:
                return f"{entry.name} is {size!r}, not a positive whole number"
        if self.vocab > self.padded_vocab:
            return f"{self.vocab} tokens do not fit in {self.padded_vocab} columns"
        return None

    def hugging_face_settings(self) -> dict[str, Any]:
        """Other keys of config.json with the values that they must have where they are present."""
        return {}

    @classmethod
    def of_hugging_face_shapes(
        cls: type[Self], shapes: Mapping[str, tuple[int, ...]]
    ) -> Self | None:
        """The config that the shapes of tensors, by name without prefix, tell by themselves; None
        if they do not."""
        return None


@dataclass(frozen=True)
class Pretrained:
    """Weights on the Hugging Face Hub: model.safetensors of one commit of a repository.

    sha256  of that file; "" where it is not known here: the Hub's own for that commit is compared
    """

    repository: str
    revision: str
    sha256: str = ""


@dataclass(frozen=True)
class Size:
    """A size of a model that has a name: what `-e NAME` means.

    config      for the vocabulary of its tokenizer
    tokenizer   the name of the tokenizer (data/tokenizers.py)
    pretrained  where its pretrained weights are; None: it has none
    """

    config: ModelConfig
    tokenizer: str = "gpt2"
    pretrained: Pretrained | None = None


def padded(vocab: int) -> int:
    """The vocabulary rounded up to a multiple of 128, as llm.c does: 50257 -> 50304."""
    return -(-vocab // 128) * 128
