"""The character model of Karpathy's lecture "Let's build GPT: from scratch, in code, spelled out"
(2023; github.com/karpathy/ng-video-lecture, gpt.py).

It is GPT-2 but for five things: ReLU takes the place of GELU, the head has a weight and a bias of
its own, queries, keys and values have no bias, no dropout follows the embedding, and every matrix
starts with the same deviation. Its optimizer is PyTorch's AdamW as it comes, which lets every
tensor decay.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from trainer.model.gpt2 import CHARACTERS, GPT2Config
from trainer.model.model_config import HuggingFaceFormat, LlmcFormat, Parameter, Size


@dataclass(frozen=True, kw_only=True)
class LectureGPTConfig(GPT2Config):
    """The size of such a model. Files of Hugging Face's GPT-2 and of llm.c cannot hold it."""

    activation: ClassVar[str] = "relu"
    head: ClassVar[tuple[str, str]] = ("headw", "headb")
    drops_embedding: ClassVar[bool] = False
    hugging_face: ClassVar[HuggingFaceFormat | None] = None
    llmc: ClassVar[LlmcFormat | None] = None

    def parameters(self) -> dict[str, Parameter]:
        """Those of GPT-2 without qkvb, and the head's. Matrices are normal with deviation 0.02."""
        Vp, C = self.padded_vocab, self.channels
        head = {"headw": Parameter((Vp, C), deviation=0.02), "headb": Parameter((Vp,))}
        tensors = {**super().parameters(), **head}
        del tensors["qkvb"]
        return {
            name: replace(tensor, decay=True, deviation=0.02 if tensor.deviation else 0.0)
            for name, tensor in tensors.items()
        }


SIZES = {"char-lecture": Size(LectureGPTConfig(**CHARACTERS), tokenizer="chars")}
