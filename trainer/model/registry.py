"""The models that the trainer knows: another one is a file beside gpt2.py, and a line in each of
these two tables."""

from trainer.model.gpt2 import SIZES as GPT2_SIZES
from trainer.model.gpt2 import GPT2Config
from trainer.model.lecture_gpt import SIZES as LECTURE_SIZES
from trainer.model.lecture_gpt import LectureGPTConfig
from trainer.model.model_config import ModelConfig, Size

MODELS: dict[str, type[ModelConfig]] = {  # by the name in checkpoints
    "gpt2": GPT2Config,
    "lecture-gpt": LectureGPTConfig,
}
SIZES: dict[str, Size] = {**GPT2_SIZES, **LECTURE_SIZES}  # by what -e takes
