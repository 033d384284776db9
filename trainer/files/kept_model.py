"""What a run leaves: its model alone, in the folder `model` of the run, in Hugging Face's layout.

runs/gpt2-tinyshakespeare/model             weights in float32, configuration, tokenizer
runs/gpt2-tinyshakespeare/model.previous    that of the run before in this folder
"""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trainer.data.huggingface_tokenizer import export_tokenizer
from trainer.data.tokenizers import Tokenizer
from trainer.files import huggingface
from trainer.model.model_config import ModelConfig

FOLDER, PREVIOUS, UNFINISHED = "model", "model.previous", "model.unfinished"

Read = Callable[[str], np.ndarray]  # a whole parameter, by its name


def find(run: Path) -> Path | None:
    """The model that a run has left in its folder, if it has."""
    folder = run / FOLDER
    return folder if (folder / huggingface.WEIGHTS).exists() else None


def newest(runs: Path = Path("runs")) -> list[Path]:
    """The runs in a folder that have left a model, the newest first."""
    kept = [path.parent for path in runs.glob(f"*/{FOLDER}") if find(path.parent)]
    return sorted(kept, key=lambda run: (run / FOLDER).stat().st_mtime, reverse=True)


def size(shape: ModelConfig) -> int:
    """Bytes of the weights in the file."""
    return 4 * sum(math.prod(sizes) for sizes in shape.unpadded_shapes().values())


def write(folder: Path, shape: ModelConfig, read: Read, tokenizer: Tokenizer) -> None:
    """The folder that transformers' from_pretrained and pipeline take, and `-e`."""
    huggingface.export_huggingface(folder, shape, read, tokenizer)
    export_tokenizer(folder, tokenizer, shape.context)


def keep(run: Path, shape: ModelConfig, read: Read, tokenizer: Tokenizer) -> Path:
    """Write a run's model to its folder. The one that is there is kept beside it, the one before
    that goes; a kill at any moment leaves a whole one."""
    unfinished, folder, previous = (run / name for name in (UNFINISHED, FOLDER, PREVIOUS))
    shutil.rmtree(unfinished, ignore_errors=True)
    write(unfinished, shape, read, tokenizer)
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    unfinished.rename(folder)
    return folder
