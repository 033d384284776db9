"""GPT-2's weights as Hugging Face keeps them: safetensors with a config.json beside it.

Their linear layers are `Conv1D`, which stores (in features, out features); ours are (out, in), so
those four matrices are transposed on the way in and out. Their tensors are one per layer, ours
stacked over layers; the language-model head is the token embedding, stored once.

Layout: https://github.com/huggingface/transformers, models/gpt2/modeling_gpt2.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from ladder.common.errors import LadderError
from ladder.common.files import atomic_write
from trainer.data.download import DownloadError, probe
from trainer.model.gpt2 import PARAMETERS, GPT2Config
from trainer.model.tensor_file import TensorFile, write_tensors

PRETRAINED = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
WEIGHTS = "model.safetensors"

# Our parameter -> their name, and whether their matrix is transposed; {} is the layer's number.
NAMES = {
    "wte": ("wte.weight", False),
    "wpe": ("wpe.weight", False),
    "ln1w": ("h.{}.ln_1.weight", False),
    "ln1b": ("h.{}.ln_1.bias", False),
    "qkvw": ("h.{}.attn.c_attn.weight", True),
    "qkvb": ("h.{}.attn.c_attn.bias", False),
    "attprojw": ("h.{}.attn.c_proj.weight", True),
    "attprojb": ("h.{}.attn.c_proj.bias", False),
    "ln2w": ("h.{}.ln_2.weight", False),
    "ln2b": ("h.{}.ln_2.bias", False),
    "fcw": ("h.{}.mlp.c_fc.weight", True),
    "fcb": ("h.{}.mlp.c_fc.bias", False),
    "fcprojw": ("h.{}.mlp.c_proj.weight", True),
    "fcprojb": ("h.{}.mlp.c_proj.bias", False),
    "lnfw": ("ln_f.weight", False),
    "lnfb": ("ln_f.bias", False),
}
PREFIX = "transformer."  # of every name but lm_head's, in files saved from GPT2LMHeadModel

# In some files, and not parameters: the causal mask as a buffer, and the head, tied to wte.
IGNORED = re.compile(r"h\.\d+\.attn\.(masked_)?bias|lm_head\.weight")

# config.json's names for GPT2Config's fields, and the settings that this GPT-2 has no choice in.
CONFIG_FIELDS = {
    "context": "n_positions",
    "vocab": "vocab_size",
    "layers": "n_layer",
    "heads": "n_head",
    "channels": "n_embd",
}
CONFIG_FIXED = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",  # the tanh approximation
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}

Pieces = Iterator[tuple[str, int | None, np.ndarray]]  # (parameter, layer or None, float32 array)


def load_huggingface(source: str | Path, data_dir: str | Path) -> tuple[GPT2Config, Pieces]:
    """Open GPT-2 weights; returns the model's shape and its parameters, piece by piece.

    source    a .safetensors file, a folder with model.safetensors, or the name of a model on the
              Hugging Face Hub: "gpt2" ... "gpt2-xl", "owner/name"
    data_dir  where a model by name is looked for first: <data_dir>/gpt2/model.safetensors

    A piece is (name, layer, array): a slice (out, in) or (C,) of a stacked parameter, or a whole
    one with layer None; wte comes padded. Without a config.json heads are taken to be 64 wide, as
    in every GPT-2 that was published. Raises DownloadError, and LadderError for weights that are
    damaged or not this model's: at once for names, shapes and types; for NaN when it is met.
    """
    file = TensorFile(_find(str(source), Path(data_dir)))
    config_path = file.path.with_name("config.json")
    names = _plain_names(file)
    config = _read_config(config_path) if config_path.exists() else _guess_config(file, names)
    _check_layout(file, names, config)
    return config, _pieces(file, names, config)


def export_huggingface(
    directory: str | Path, config: GPT2Config, read: Callable[[str], np.ndarray]
) -> None:
    """Write model.safetensors (float32) and config.json; transformers' from_pretrained loads them.

    `read` returns a whole parameter, stacked and padded as ours are; one is held at a time.
    """
    directory = Path(directory)
    held: dict[str, np.ndarray] = {}

    def piece(name: str, layer: int | None) -> np.ndarray:
        if name not in held:
            held.clear()
            held[name] = np.asarray(read(name), np.float32)
        array = held[name] if layer is None else held[name][layer]
        array = array[: config.vocab] if name == "wte" else array
        return array.T if NAMES[name][1] else array

    tensors = {
        PREFIX + theirs: lambda name=name, layer=layer: piece(name, layer)
        for name, layer, theirs in _layers(config)
    }
    eot = config.vocab - 1 if config.vocab == GPT2Config().vocab else None
    settings = {
        "architectures": ["GPT2LMHeadModel"],
        **{theirs: getattr(config, ours) for ours, theirs in CONFIG_FIELDS.items()},
        **CONFIG_FIXED,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout),
        "bos_token_id": eot,
        "eos_token_id": eot,
    }
    with (
        atomic_write(directory / WEIGHTS) as weights,
        atomic_write(directory / "config.json") as text,
    ):
        write_tensors(weights, tensors, {"format": "pt"})  # transformers insists on the format
        text.write(json.dumps(settings, indent=2).encode())


def check_finite(array: np.ndarray, where: str) -> np.ndarray:
    """The array, if every element is a finite number; else LadderError."""
    if not np.isfinite(array).all():
        raise LadderError(f"{where} holds NaN or infinity; fetch or export the weights again")
    return array


def _layers(config: GPT2Config) -> Iterator[tuple[str, int | None, str]]:
    """(parameter, layer or None, their name) of every tensor, in our order."""
    for name in PARAMETERS:
        theirs = NAMES[name][0]
        for layer in range(config.layers) if "{}" in theirs else [None]:
            yield name, layer, theirs.format(layer)


def _pieces(file: TensorFile, names: dict[str, str], config: GPT2Config) -> Pieces:
    for name, layer, theirs in _layers(config):
        where = f"{file.path}: {names[theirs]}"
        array = check_finite(file[names[theirs]], where).astype(np.float32, copy=False)
        if NAMES[name][1]:
            array = np.ascontiguousarray(array.T)
        if name == "wte":
            array = np.pad(array, ((0, config.padded_vocab - config.vocab), (0, 0)))
        yield name, layer, array


def _plain_names(file: TensorFile) -> dict[str, str]:
    """Name without the prefix -> name in the file, of every tensor that is a parameter."""
    names: dict[str, str] = {}
    for full in file:
        name = full.removeprefix(PREFIX)
        if IGNORED.fullmatch(name):
            continue
        if name in names:
            raise LadderError(f"{file.path} holds {name} twice, with and without {PREFIX!r}")
        names[name] = full
    return names


def _check_layout(file: TensorFile, names: dict[str, str], config: GPT2Config) -> None:
    """Every tensor of `config` is there, none besides, each of the shape and a type it may have."""
    if config.layers > len(names):  # before that many names are made
        raise LadderError(f"{file.path} holds {len(names)} tensors, not {config.layers} layers")
    shapes = config.parameter_shapes()
    unexpected = set(names)
    for name, layer, theirs in _layers(config):
        if theirs not in names:
            raise LadderError(f"{file.path} lacks the tensor {theirs}; is it a whole GPT-2?")
        unexpected.discard(theirs)
        dtype, shape = file.layout[names[theirs]]
        expected = shapes[name] if layer is None else shapes[name][1:]
        if name == "wte":
            expected = (config.vocab, config.channels)
        if NAMES[name][1]:
            expected = expected[::-1]
        if shape != expected:
            raise LadderError(
                f"{file.path}: {theirs} has the shape {shape}, the model's is {expected}; "
                "fetch the weights again, with the config.json that belongs to them"
            )
        if dtype.name not in ("float16", "bfloat16", "float32"):
            raise LadderError(f"{file.path}: {theirs} is {dtype.name}, not a 16 or 32-bit float")
    if unexpected:
        raise LadderError(f"{file.path} holds {min(unexpected)}, which GPT-2 does not have")


def _read_config(path: Path) -> GPT2Config:
    try:
        settings = json.loads(path.read_bytes())
    except OSError as error:
        raise LadderError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise LadderError(f"{path} is not JSON ({error}); fetch it again") from None
    if not isinstance(settings, dict):
        raise LadderError(f"{path} is not a model's configuration; fetch it again")
    for key, value in CONFIG_FIXED.items():
        if settings.get(key, value) != value:
            raise LadderError(f"{path}: {key} is {settings[key]!r}; this GPT-2 has {value!r} only")
    fields = {ours: settings.get(theirs) for ours, theirs in CONFIG_FIELDS.items()}
    for ours, theirs in CONFIG_FIELDS.items():
        if type(fields[ours]) is not int or fields[ours] < 1:
            raise LadderError(f"{path}: {theirs} is {fields[ours]!r}, not a positive number")
    if settings.get("n_inner") not in (None, 4 * fields["channels"]):
        raise LadderError(f"{path}: n_inner is {settings['n_inner']!r}; this GPT-2 has 4 * n_embd")
    if fields["channels"] % fields["heads"]:
        raise LadderError(f"{path}: n_embd is not a multiple of n_head")
    return GPT2Config(**fields, padded_vocab=padded(fields["vocab"]))


def _guess_config(file: TensorFile, names: dict[str, str]) -> GPT2Config:
    """The model's shape from its tensors' shapes."""
    shapes = [file.layout[names[name]][1] for name in ("wte.weight", "wpe.weight") if name in names]
    if [len(shape) for shape in shapes] != [2, 2] or 0 in shapes[0] + shapes[1]:
        raise LadderError(f"{file.path} lacks wte.weight or wpe.weight; is it a GPT-2?")
    (vocab, channels), (context, _) = shapes
    layers = sum(re.fullmatch(r"h\.\d+\.ln_1\.weight", name) is not None for name in names)
    if channels % 64 or not layers:
        raise LadderError(
            f"{file.path}: put its config.json beside it; "
            f"{channels} channels in {layers} layers do not tell the number of heads"
        )
    return GPT2Config(
        context=context,
        vocab=vocab,
        padded_vocab=padded(vocab),
        layers=layers,
        heads=channels // 64,
        channels=channels,
    )


def padded(vocab: int) -> int:
    """The vocabulary rounded up to a multiple of 128, as llm.c does: 50257 -> 50304."""
    return -(-vocab // 128) * 128


def _find(source: str, data_dir: Path) -> Path:
    """The .safetensors file that `source` means; by name first in data_dir, then from the Hub."""
    path = Path(source)
    if source not in PRETRAINED:
        if path.suffix == ".safetensors":
            return path
        if path.is_dir():
            if not (path / WEIGHTS).exists():
                raise LadderError(
                    f"{path}: this folder holds no checkpoint and no {WEIGHTS}; "
                    "a run writes checkpoints if it is given -n"
                )
            return path / WEIGHTS
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
            raise LadderError(
                f"no weights {source!r}: give a .safetensors file, a folder that holds {WEIGHTS}, "
                f"{', '.join(PRETRAINED)}, or owner/name of a model on the Hugging Face Hub"
            )
    local = data_dir / source / WEIGHTS
    if local.exists():
        return local
    return _download(source if "/" in source else f"openai-community/{source}")


def _download(repository: str) -> Path:
    """The Hub's file in its local cache, fetched if it is not there yet (with a progress bar)."""
    import huggingface_hub  # takes a quarter of a second, and few runs need it
    from huggingface_hub import constants

    def fetch(name: str, local_files_only: bool) -> Path:
        return Path(
            huggingface_hub.hf_hub_download(
                repository, name, etag_timeout=5, local_files_only=local_files_only
            )
        )

    with suppress(OSError):  # LocalEntryNotFoundError: not in the cache
        fetch("config.json", local_files_only=True)
        return fetch(WEIGHTS, local_files_only=True)
    remedy = f"put its {WEIGHTS} into a folder, and give that"
    if constants.HF_HUB_OFFLINE:
        raise DownloadError(f"{repository} is not in the cache and HF_HUB_OFFLINE is set; {remedy}")
    try:
        probe(constants.ENDPOINT)  # without a network the Hub's client retries for half a minute
    except Exception:  # the HTTP library's own, here and below; which library is not our business
        message = f"cannot download {repository} (no connection to {constants.ENDPOINT}); {remedy}"
        raise DownloadError(message) from None
    try:
        fetch("config.json", local_files_only=False)
        return fetch(WEIGHTS, local_files_only=False)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(f"cannot download {repository} ({reason}); {remedy}") from None
