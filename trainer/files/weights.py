"""Where a model's first weights come from: the models that `-e` names, files, and runs."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from ladder.core.common.command_line import did_you_mean
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json
from trainer.data.download import DownloadError, data_directory
from trainer.data.tokenizers import Tokenizer, get_tokenizer
from trainer.files import checkpoint, huggingface, kept_model, llmc_files
from trainer.files.tensor_file import Pieces, check_finite
from trainer.flags import Flags, TrainConfig
from trainer.model.model_config import ModelConfig, padded
from trainer.model.program import initial_parameters
from trainer.model.registry import MODELS, SIZES

INSTEAD = "using random initial weights instead of"


@dataclass(frozen=True)
class Model:
    """A model's shape and its first weights, one piece at a time.

    `source` says where the weights come from; `note`, if something else than was asked for is
    used, is one line that says what and why. `tokenizer` is the one that a run's checkpoint names.
    """

    shape: ModelConfig
    pieces: Pieces
    source: str
    trained: bool = True
    note: str | None = None
    tokenizer: str | None = None


def open_model(name: str, *, vocab: int, seed: int, data_dir: Path) -> Model:
    """The model that `-e NAME` means, for a tokenizer of `vocab` tokens.

    gpt2 ... gpt2-xl fall back to random weights, with a note, where the pretrained ones cannot be
    had. Raises LadderError for an unknown name and for files that are not a model.
    """
    if name not in SIZES:
        return open_file(Path(name))
    size = SIZES[name]
    shape = size.config.with_vocab(vocab)
    if size.pretrained is None:
        return random_model(shape, seed)
    if vocab != size.config.vocab:
        note = f"{INSTEAD} {name}'s, which belong to the tokens of {size.tokenizer}"
        return random_model(shape, seed, note)
    try:
        file = huggingface.find_pretrained(name, data_dir)
    except DownloadError as error:
        return random_model(shape, seed, f"{INSTEAD} {name}: {error}")
    return Model(*huggingface.load_huggingface(file), f"pretrained {name}")


def open_with_tokenizer(flags: Flags) -> tuple[Model, Tokenizer]:
    """The model that `-e NAME` means, and the tokenizer that `--tokenizer` or else the model names.

    Raises LadderError where the two do not belong together.
    """
    name, tokenizer = flags.value("model"), flags.tokenizer
    seed, data_dir = flags.value("seed"), data_directory(flags.data_dir)
    # A file that is no model says so before a tokenizer's vocabulary is downloaded for it.
    opened = None if name in SIZES else open_file(Path(name))
    there, _ = _newest(Path(name))
    folder = there.parent if there.is_file() else there
    chosen = get_tokenizer(tokenizer or tokenizer_of(name), data_dir, folder)
    model = opened or open_model(name, vocab=chosen.vocab, seed=seed, data_dir=data_dir)
    if model.tokenizer not in (None, chosen.name):
        raise LadderError(
            f"--tokenizer {chosen.name}: {name} was trained on the tokens of "
            f"{model.tokenizer}; leave --tokenizer out"
        )
    # Some models have a few more ids than tokens, to round the number up.
    too_few = tokenizer is not None and model.tokenizer is None
    too_few &= padded(chosen.vocab) < model.shape.vocab
    if chosen.vocab > model.shape.vocab or too_few:
        raise LadderError(
            f"the tokenizer {chosen.name} has {chosen.vocab} tokens, the model "
            f"{model.shape.vocab}; choose the one it was trained with by --tokenizer"
        )
    return model, chosen


def refuse_random(name: str, model: Model) -> None:
    """Raise LadderError where the weights are random, for a command that needs trained ones."""
    if model.trained:
        return
    missing = f"{INSTEAD} {name}: "  # the pretrained weights; the rest of the note has a remedy
    note = model.note or "it has random weights"
    remedy = "; train first, then name the run's folder or a model file by -e"
    if note.startswith(missing):
        remedy = ", or that of a run"
    raise LadderError(f"-e {name}: {note.removeprefix(missing)}{remedy}")


def open_file(path: Path) -> Model:
    """A model from llm.c's `.bin`, Hugging Face safetensors, or the folder of a run."""
    if not path.exists():
        others = known_runs(path) or f"; names are {', '.join(SIZES)}"
        hint = did_you_mean(str(path), SIZES)
        raise LadderError(f"-e {path}: no such file or folder, and no model's name{hint}{others}")
    if path.suffix == ".bin":
        return Model(*llmc_files.load_model(path), str(path))
    folder, step = _newest(path)
    if step is not None:
        tensors, state = checkpoint.load(path, step)
        shape = shape_of(tensors, state)
        pieces = (
            (name, None, check_finite(tensors[name], f"{path}: {name}"))
            for name in shape.parameters()
        )
        source = f"{path}, step {step}"
        return Model(shape, pieces, source, tokenizer=tokenizer_in(state))
    if path.suffix == ".safetensors" or path.is_dir():
        if runs := kept_model.newest(folder):
            raise LadderError(f"-e {path} holds runs; name one: {', '.join(map(str, runs))}")
        opened = huggingface.load_huggingface(folder)
        source = str(folder)
        if not ((folder if path.is_dir() else folder.parent) / "config.json").exists():
            # The number of heads is a guess.
            source += f", without config.json taken for {opened[0].summary}"
        return Model(*opened, source, tokenizer=huggingface.tokenizer_of(folder))
    raise LadderError(
        f"-e {path}: not a kind of file that holds a model; those are llm.c's .bin, .safetensors, "
        "and the folder of a run"
    )


def _newest(path: Path) -> tuple[Path, int | None]:
    """Where the model of a run's folder is: the model that it has left, or if that is newer, the
    checkpoint of this step. Any other path is what it is."""
    left, step = kept_model.find(path), checkpoint.latest(path) if path.is_dir() else None
    if left is not None and step is not None:
        written = max(folder.stat().st_mtime_ns for folder in path.glob("step_*"))
        step = step if written > left.stat().st_mtime_ns else None
    return (path, step) if step is not None else (left or path, None)


def known_runs(path: str | Path) -> str:
    """The runs that have left a model, the most similar first, where `path` is not there."""
    there = {str(run) for run in (*kept_model.newest(), *kept_model.newest(Path(path).parent))}
    runs = difflib.get_close_matches(str(path), there, n=9, cutoff=0)
    return f"; runs are {', '.join(runs)}" if runs else ""


def tokenizer_of(name: str) -> str:
    """The name of the tokenizer that belongs to a model: a run's checkpoint tells its own."""
    if name in SIZES:
        return SIZES[name].tokenizer
    return open_file(Path(name)).tokenizer or "gpt2"


def tokenizer_in(state: Mapping[str, Any]) -> str | None:
    """The name of the tokenizer in the state of a checkpoint, if there is one."""
    return str(state.get("tokenizer") or "") or None


def settings_of(run: Path) -> dict[str, Any]:
    """The settings that the config.json in a run's folder names; none where there is no such."""
    record = read_json(path) if (path := run / "config.json").is_file() else {}
    kinds = {**get_type_hints(TrainConfig), "schedule": str}
    items = record.items() if isinstance(record, dict) else ()
    return {name: value for name, value in items if type(value) is kinds.get(name)}


def state_of(shape: ModelConfig) -> dict[str, Any]:
    """What a checkpoint says of the model whose tensors it holds; `shape_of` reads it."""
    (name,) = [name for name, model in MODELS.items() if model is type(shape)]
    return {"architecture": name, "shape": asdict(shape)}


def shape_of(tensors: checkpoint.CheckedTensors, state: Mapping[str, Any]) -> ModelConfig:
    """The model's config from the state of a checkpoint, once its tensors are seen to have it."""
    where = tensors.path.parent
    name = str(state.get("architecture", "gpt2"))  # there was no other when none was written
    if name not in MODELS:
        raise LadderError(f"{where} holds a model that is not known here, {name!r}")
    try:
        shape = MODELS[name](**state["shape"])
    except (KeyError, TypeError):
        raise LadderError(f"{where} does not say what model it holds") from None
    sound = shape.refusal() is None
    for name, dimensions in shape.parameter_shapes().items() if sound else ():
        sound &= tensors.layout.get(name, ((), ()))[1] == dimensions
    if not sound:
        raise LadderError(f"{tensors.path} does not hold the model that its state describes")
    return shape


def random_model(shape: ModelConfig, seed: int, note: str | None = None) -> Model:
    pieces = ((name, None, array) for name, array in initial_parameters(shape, seed))
    return Model(shape, pieces, f"random, seed {seed}", trained=False, note=note)
