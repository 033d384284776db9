"""A model's weights as Hugging Face keeps them: safetensors with a config.json beside it.

A file has one tensor per layer; ours are stacked over layers. `HuggingFaceFormat` of each model has
the names of its tensors, and which of them are transposed.

Layout: https://github.com/huggingface/transformers, models/<model>/modeling_<model>.py.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write, read_json, write_json
from trainer.data.download import DownloadError, hash_of, probe
from trainer.data.tokenizers import Tokenizer
from trainer.files.tensor_file import Pieces, TensorFile, check_finite, write_tensors
from trainer.model.model_config import HuggingFaceFormat, ModelConfig, Pretrained, format_in, padded
from trainer.model.registry import MODELS, SIZES

WEIGHTS = "model.safetensors"
# What torch.compile, DataParallel and FSDP put before the names of a module that they wrap.
WRAPPERS = r"(?:(?<=\.)|^)(_orig_mod|module|_\w+_wrapped_module)\."


def load_huggingface(path: Path) -> tuple[ModelConfig, Pieces]:
    """Open the weights in a .safetensors file or in a folder with model.safetensors; returns the
    model's config and its parameters, piece by piece.

    A piece is (name, layer, array): a slice (out, in) or (C,) of a stacked parameter, or a whole
    one with layer None; the vocabulary comes padded. Raises LadderError for weights that are
    damaged or not those of a known model: at once for names, shapes and types; for NaN when it is
    met.
    """
    if path.is_dir() and not (path / WEIGHTS).exists():
        raise LadderError(
            f"{path}: this folder holds no checkpoint and no {WEIGHTS}; a run leaves its model at "
            "its end"
        )
    file = TensorFile(path / WEIGHTS if path.is_dir() else path)
    config_path = file.path.with_name("config.json")
    if not config_path.exists():
        config = _guess_config(file)
    elif isinstance(settings := read_json(config_path), dict):
        config = config_of(settings, config_path)
    else:
        raise LadderError(f"{config_path} is not a model's configuration; fetch it again")
    form = format_in(config.hugging_face, "Hugging Face")
    names = _plain_names(file, form)
    if _is_as_linear(file, names, form, config):
        straight = {name: (theirs, False) for name, (theirs, _) in form.tensors.items()}
        form = dataclasses.replace(form, tensors=straight)
    _check_layout(file, names, form, config)
    return config, _pieces(file, names, form, config)


def export_huggingface(
    directory: str | Path,
    config: ModelConfig,
    read: Callable[[str], np.ndarray],
    tokenizer: Tokenizer,
) -> None:
    """Write model.safetensors (float32), config.json and generation_config.json; transformers'
    from_pretrained loads them. The file of weights names the tokenizer of their tokens.

    `read` returns a whole parameter, stacked and padded as ours are; one is held at a time.
    """
    form = format_in(config.hugging_face, "Hugging Face")
    directory = Path(directory)
    unpadded = config.unpadded_shapes()
    held: dict[str, np.ndarray] = {}

    def piece(name: str, layer: int | None) -> np.ndarray:
        if name not in held:
            held.clear()
            held[name] = np.asarray(read(name), np.float32)
        array = held[name][tuple(map(slice, unpadded[name]))]
        array = array if layer is None else array[layer]
        return array.T if form.tensors[name][1] else array

    tensors = {
        form.prefix + theirs: functools.partial(piece, name, layer)
        for name, layer, theirs in named_tensors(form, config)
    }
    ends = {"bos_token_id": tokenizer.eot, "eos_token_id": tokenizer.eot}
    about = {"format": "pt", "tokenizer": tokenizer.name}  # transformers insists on the format
    settings = {
        "architectures": [form.class_name],
        "model_type": form.model_type,
        **{theirs: getattr(config, ours) for ours, theirs in form.fields.items()},
        **config.hugging_face_settings(),
        **{theirs: getattr(config, ours) for theirs, ours in form.dropouts.items()},
        **ends,
    }
    with atomic_write(directory / WEIGHTS) as weights:
        write_tensors(weights, tensors, about)
    write_json(directory / "generation_config.json", {"do_sample": True, **ends}, indent=2)
    write_json(directory / "config.json", settings, indent=2)


def tokenizer_of(path: Path) -> str | None:
    """The name of the tokenizer of a model that was exported here; None for another's."""
    path = path / WEIGHTS if path.is_dir() else path
    return TensorFile(path).metadata.get("tokenizer") if path.exists() else None


def named_tensors(
    form: HuggingFaceFormat, config: ModelConfig
) -> Iterator[tuple[str, int | None, str]]:
    """(parameter, layer or None, name in the file) of every tensor, in our order."""
    for name, parameter in config.parameters().items():
        theirs = form.tensors[name][0]
        layers = range(parameter.shape[0]) if parameter.stacked else [None]
        for layer in layers:
            yield name, layer, theirs.format(layer)


def _is_as_linear(
    file: TensorFile, names: Mapping[str, str], form: HuggingFaceFormat, config: ModelConfig
) -> bool:
    """Whether a file holds matrices as PyTorch's Linear does, (out, in), and not transposed as the
    format has them; nanoGPT's do. Those of the first layer tell that are not square."""
    straight = set()
    for name, shape in config.unpadded_shapes().items():
        theirs, transposed = form.tensors[name]
        full = names.get(theirs.format(0))
        if transposed and full and shape[-2] != shape[-1]:
            straight.add(file.layout[full][1] == shape[-2:])
    return straight == {True}


def _pieces(
    file: TensorFile, names: Mapping[str, str], form: HuggingFaceFormat, config: ModelConfig
) -> Pieces:
    shapes = config.parameter_shapes()
    twins = {parameter: names[twin] for twin, parameter in form.tied.items() if twin in names}
    for name, layer, theirs in named_tensors(form, config):
        where = f"{file.path}: {names[theirs]}"
        array = check_finite(file[names[theirs]], where).astype(np.float32, copy=False)
        if theirs in twins and not np.array_equal(array, file[twins[theirs]]):
            raise LadderError(
                f"{file.path}: {twins[theirs]} differs from {theirs}, and here the two are one "
                "tensor; train it with tied embeddings, as GPT-2 has them"
            )
        if form.tensors[name][1]:
            array = np.ascontiguousarray(array.T)
        shape = shapes[name] if layer is None else shapes[name][1:]
        missing = [(0, size - have) for size, have in zip(shape, array.shape, strict=True)]
        yield name, layer, np.pad(array, missing) if array.shape != shape else array


def _plain_names(file: TensorFile, form: HuggingFaceFormat) -> dict[str, str]:
    """Name without prefixes -> name in the file, of every tensor that is not ignored."""
    names: dict[str, str] = {}
    for full in file:
        name = re.sub(WRAPPERS, "", full).removeprefix(form.prefix)
        if re.fullmatch(form.ignored, name):
            continue
        if name in names:
            raise LadderError(f"{file.path} holds {name} twice, as {names[name]} and as {full}")
        names[name] = full
    return names


def _check_layout(
    file: TensorFile, names: Mapping[str, str], form: HuggingFaceFormat, config: ModelConfig
) -> None:
    """Raise LadderError unless the file holds exactly these tensors, each with the right shape and
    a dtype of 16 or 32 bits."""
    shapes, parameters = config.unpadded_shapes(), config.parameters()
    layers = max((p.shape[0] for p in parameters.values() if p.stacked), default=0)
    if layers > len(names):  # before that many names are made
        raise LadderError(f"{file.path} holds {len(names)} tensors, not {layers} layers")
    unexpected = names.keys() - form.tied.keys()
    for name, layer, theirs in named_tensors(form, config):
        if theirs not in names:
            raise LadderError(
                f"{file.path} lacks the tensor {theirs}, and has {min(file, default='none')}; "
                f"is it a whole {form.model_type} model?"
            )
        unexpected.discard(theirs)
        dtype, shape = file.layout[names[theirs]]
        expected = shapes[name] if layer is None else shapes[name][1:]
        if form.tensors[name][1]:
            expected = expected[::-1]
        if shape != expected:
            raise LadderError(
                f"{file.path}: {theirs} has the shape {shape}, the model's is {expected}; "
                "fetch the weights again, with the config.json that belongs to them"
            )
        if dtype.name not in ("float16", "bfloat16", "float32"):
            raise LadderError(f"{file.path}: {theirs} is {dtype.name}, not a 16 or 32-bit float")
    if unexpected:
        raise LadderError(
            f"{file.path} holds {min(unexpected)}, which a {form.model_type} model does not have"
        )


def config_of(settings: Mapping[str, Any], path: Path) -> ModelConfig:
    """The model that the settings of a config.json describe. Raises LadderError, with the path,
    where it is not one of ours."""
    model, form = _model_of(settings, path)
    fields: dict[str, Any] = {ours: settings.get(theirs) for ours, theirs in form.fields.items()}
    for ours, theirs in form.fields.items():
        if type(fields[ours]) is not int or fields[ours] < 1:
            raise LadderError(f"{path}: {theirs} is {fields[ours]!r}, not a positive number")
    config = model(**fields, padded_vocab=padded(fields["vocab"]))
    if refusal := config.refusal():
        raise LadderError(f"{path}: {refusal}")
    for key, value in config.hugging_face_settings().items():
        if settings.get(key) not in (None, value):
            raise LadderError(
                f"{path}: {key} is {settings[key]!r}; here, a {form.model_type} model has {value!r}"
            )
    return config


def _model_of(
    settings: Mapping[str, Any], path: Path
) -> tuple[type[ModelConfig], HuggingFaceFormat]:
    """The model that a config.json names; if it names none, the first that has a format."""
    formats = [(m, m.hugging_face) for m in MODELS.values() if m.hugging_face is not None]
    model_type = settings.get("model_type", formats[0][1].model_type)
    for model, form in formats:
        if form.model_type == model_type:
            return model, form
    known = ", ".join(repr(form.model_type) for _, form in formats)
    raise LadderError(f"{path}: model_type is {model_type!r}; only {known} can be loaded")


def _guess_config(file: TensorFile) -> ModelConfig:
    """The model that follows from names and shapes of the tensors, where config.json is missing."""
    for model in MODELS.values():
        if model.hugging_face is not None:
            names = _plain_names(file, model.hugging_face)
            shapes = {name: file.layout[full][1] for name, full in names.items()}
            if (config := model.of_hugging_face_shapes(shapes)) is not None:
                return config
    raise LadderError(
        f"{file.path}: put its config.json beside it; the tensors alone do not tell the model"
    )


def find_pretrained(name: str, data_dir: Path) -> Path:
    """The weights of a model that has some: those in data_dir, <data_dir>/gpt2/model.safetensors,
    or those of the Hub. Raises DownloadError."""
    known = SIZES[name].pretrained
    assert known is not None
    local = data_dir / name / WEIGHTS
    return local if local.exists() else _checked(_download(known), known)


def _checked(path: Path, known: Pretrained) -> Path:
    """A file in the Hub's local cache, once its content is seen to have a SHA-256.

    Where none is known, it is the one that the Hub reported when the file was fetched, by which
    the cache names what `path` links to.
    """
    expected = known.sha256 or os.path.basename(os.path.realpath(path))
    if re.fullmatch("[0-9a-f]{64}", expected) and hash_of(path) != expected:
        raise LadderError(
            f"{path} does not have the sha256 {expected}; delete it, and it is fetched again"
        )
    return path


def _download(known: Pretrained) -> Path:
    """The Hub's file in its local cache, downloaded if it is missing (with a progress bar)."""
    import huggingface_hub  # takes a quarter of a second, and few runs need it
    from huggingface_hub import constants

    repository = known.repository
    fetch = functools.partial(
        huggingface_hub.hf_hub_download, repository, revision=known.revision, etag_timeout=5
    )
    with suppress(OSError):  # LocalEntryNotFoundError: not in the cache
        fetch("config.json", local_files_only=True)
        return Path(fetch(WEIGHTS, local_files_only=True))
    remedy = f"put its {WEIGHTS} into a folder, and name the folder by -e"
    if constants.HF_HUB_OFFLINE:
        raise DownloadError(f"{repository} is not in the cache and HF_HUB_OFFLINE is set; {remedy}")
    reason = f"no connection to {constants.ENDPOINT}"
    try:
        probe(constants.ENDPOINT)  # without a network the Hub's client retries for half a minute
        reason = ""
        fetch("config.json", local_files_only=False)
        return Path(fetch(WEIGHTS, local_files_only=False))
    except Exception as error:  # those of the client and of its HTTP library
        reason = reason or (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(f"cannot download {repository} ({reason}); {remedy}") from None
