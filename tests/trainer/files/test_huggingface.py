"""GPT-2's weights from and to Hugging Face's files: every number in its place, or a clear error."""

import hashlib
import itertools
import json
import re
import shutil
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.device.open import open_device
from tests.trainer.damage import damaged
from tests.trainer.tiny import PARAMETERS, whole
from trainer.data.download import DownloadError
from trainer.data.tokenizers import ByteTokenizer
from trainer.engine.engine import Engine
from trainer.files import huggingface
from trainer.files.huggingface import export_huggingface, find_pretrained, load_huggingface
from trainer.files.weights import open_file
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import build, initial_parameters
from trainer.model.registry import SIZES

TINY = GPT2Config(context=6, vocab=11, padded_vocab=128, layers=3, heads=2, channels=4)
# As transformers' GPT2LMHeadModel has them: the shapes of one layer, by name.
LAYER = {
    "ln_1.weight": (4,),
    "ln_1.bias": (4,),
    "attn.c_attn.weight": (4, 12),  # Conv1D: (in, out)
    "attn.c_attn.bias": (12,),
    "attn.c_proj.weight": (4, 4),
    "attn.c_proj.bias": (4,),
    "ln_2.weight": (4,),
    "ln_2.bias": (4,),
    "mlp.c_fc.weight": (4, 16),
    "mlp.c_fc.bias": (16,),
    "mlp.c_proj.weight": (16, 4),
    "mlp.c_proj.bias": (4,),
}
# Ours: theirs, which stand in the same order; their matrices are transposed.
STACKED = dict(zip(PARAMETERS[2:-2], LAYER, strict=True))
CONFIG = {"n_positions": 6, "vocab_size": 11, "n_layer": 3, "n_head": 2, "n_embd": 4}


def theirs(prefix: str = "", dtype=np.float32) -> dict[str, np.ndarray]:
    shapes = {"wte.weight": (11, 4), "wpe.weight": (6, 4)}
    for layer in range(3):
        shapes.update({f"h.{layer}.{name}": shape for name, shape in LAYER.items()})
    shapes.update({"ln_f.weight": (4,), "ln_f.bias": (4,)})
    rng = np.random.default_rng(0)
    return {prefix + n: rng.standard_normal(shape).astype(dtype) for n, shape in shapes.items()}


def write(folder: Path, tensors: dict, config: dict | None = CONFIG) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(source, data_dir=Path("/nowhere")) -> tuple[GPT2Config, dict[str, np.ndarray]]:
    path = find_pretrained(source, data_dir) if source in SIZES else source
    return whole(*load_huggingface(path))


def parameters(config: GPT2Config) -> dict[str, np.ndarray]:
    """Random everywhere, also where GPT-2's initialisation has constants."""
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(a.shape).astype(a.dtype) * 0.3 + a
             for name, a in initial_parameters(config, 0)}  # fmt: skip
    arrays["wte"][config.vocab :] = 0
    return arrays


WRAPPED = ("_orig_mod.transformer.", "module._orig_mod.", "_fsdp_wrapped_module.transformer.")


@pytest.mark.parametrize("prefix", ["", "transformer.", *WRAPPED])
def test_every_tensor_lands_in_its_place(tmp_path, prefix):
    tensors = theirs()
    config, ours = load(write(tmp_path, theirs(prefix)))
    assert config == TINY
    assert tuple(ours) == PARAMETERS
    assert not ours["wte"][11:].any()
    names = {"wte": "wte.weight", "wpe": "wpe.weight", "lnfw": "ln_f.weight", "lnfb": "ln_f.bias"}
    for name, of in names.items():
        np.testing.assert_array_equal(ours[name][: len(tensors[of])], tensors[of])
    for (name, parts), layer in itertools.product(STACKED.items(), range(3)):
        expected = tensors[f"h.{layer}.{parts}"]
        np.testing.assert_array_equal(ours[name][layer], expected.T, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_half_precision_is_widened_exactly(tmp_path, dtype):
    _, ours = load(write(tmp_path, theirs(dtype=dtype)))
    expected = theirs(dtype=dtype)["h.2.attn.c_attn.weight"].astype(np.float32)
    np.testing.assert_array_equal(ours["qkvw"][2], expected.T)


def test_masks_and_the_tied_head_are_skipped(tmp_path):
    tensors = theirs("transformer.")
    for layer in range(3):
        tensors[f"transformer.h.{layer}.attn.bias"] = np.ones((1, 1, 6, 6), np.uint8)
        tensors[f"transformer.h.{layer}.attn.masked_bias"] = np.array(-np.inf, np.float32)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    assert load(write(tmp_path, tensors))[0] == TINY


def test_matrices_as_nanogpt_has_them_are_read(tmp_path):
    """(out, in), as PyTorch's Linear; which of the two a square one is, the others tell."""
    matrices = {name: a for name, a in theirs().items() if "attn.c_" in name or "mlp" in name}
    turned = {name: np.ascontiguousarray(a.T) for name, a in matrices.items()}
    _, ours = load(write(tmp_path, {**theirs(), **turned}))
    for name, array in load(write(tmp_path, theirs()))[1].items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


def test_a_head_of_its_own_is_refused(tmp_path):
    tensors = theirs("module.transformer.")
    tensors["module.lm_head.weight"] = 2 * tensors["module.transformer.wte.weight"]
    with pytest.raises(LadderError, match=r" module\.lm_head\.weight .* wte\.weight"):
        load(write(tmp_path, tensors))


def test_without_a_config_the_shapes_tell(tmp_path):
    config = GPT2Config(context=5, vocab=300, padded_vocab=384, layers=2, heads=3, channels=192)
    ours = parameters(config)
    export_huggingface(tmp_path, config, ours.__getitem__, ByteTokenizer())
    assert open_file(tmp_path).source == str(tmp_path)
    (tmp_path / "config.json").unlink()
    assert load(tmp_path)[0] == config
    assert re.search(r"without config\.json .* 3 heads", open_file(tmp_path).source)


def without(tensors, name):
    return {n: array for n, array in tensors.items() if n != name}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda t: without(t, "h.1.ln_2.bias"), " h.1.ln_2.bias, .* h.0.attn.c_attn.bias;"),
        (lambda t: without(t, "ln_f.weight"), " ln_f.weight, .* h.0.attn.c_attn.bias;"),
        (
            lambda t: {"model." + n: a for n, a in t.items()},
            " wte.weight, .* model.h.0.attn.c_attn.bias;",
        ),
        (lambda t: {**t, "h.3.ln_1.bias": t["ln_f.bias"]}, " h.3.ln_1.bias, .*gpt2"),
        (lambda t: {**t, "classifier": t["ln_f.bias"]}, " classifier, .*gpt2"),
        (
            lambda t: {**t, "transformer.ln_f.bias": t["ln_f.bias"]},
            " ln_f.bias .* transformer.ln_f.bias",
        ),
        (lambda t: {**t, "wte.weight": t["wpe.weight"]}, r"wte.weight .*\(6, 4\), .*\(11, 4\)"),
        (
            lambda t: {**t, "h.0.mlp.c_fc.weight": t["h.0.mlp.c_proj.weight"]},
            r"c_fc.weight .*\(16, 4\), .*\(4, 16\)",
        ),
        (lambda t: {**t, "ln_f.bias": t["ln_f.bias"].astype(int)}, "ln_f.bias .*int64"),
        (lambda t: {**t, "ln_f.bias": t["ln_f.bias"] * np.float32("nan")}, "ln_f.bias .*NaN"),
        (lambda t: {**t, "h.2.ln_1.bias": t["ln_f.bias"] / np.float32(0)}, "h.2.ln_1.bias .*NaN"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_other_tensors_than_gpt2s_are_refused_by_name(tmp_path, change, names):
    with pytest.raises(LadderError, match=names):
        load(write(tmp_path, change(theirs())))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"n_layer": 4}, r" h\.3\."),
        ({"n_layer": 2}, r" h\.2\."),
        ({"n_layer": 10**12}, " 40 .* 1000000000000 "),
        ({"n_layer": 0}, "n_layer .* 0,"),
        ({"n_head": 3}, "4 channels .* 3 heads"),
        ({"n_embd": 10**30, "n_head": 1}, r"wte.weight .*\(11, 4\), .*\(11, 10+\)"),
        ({"n_embd": 8}, r"wte.weight .*\(11, 4\), .*\(11, 8\)"),
        ({"vocab_size": None}, "vocab_size .* None"),
        ({"vocab_size": True}, "vocab_size .* True"),
        ({"n_positions": "6"}, "n_positions .* '6'"),
        ({"n_inner": 8}, "n_inner .* 8;.* 16"),
        ({"model_type": "llama"}, "model_type .*'llama'; .*'gpt2'"),
        ({"activation_function": "relu"}, "activation_function .*'relu'; .*'gelu_new'"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon .* 1e-06"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings .* False"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx .* True"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path, change, names):
    with pytest.raises(LadderError, match=names):
        load(write(tmp_path, theirs(), {**CONFIG, **change}))


def test_export_writes_what_load_reads(tmp_path):
    ours = parameters(TINY)
    export_huggingface(tmp_path / "new" / "folder", TINY, ours.__getitem__, ByteTokenizer())
    config, again = load(tmp_path / "new" / "folder")
    assert config == TINY
    for name in PARAMETERS:
        np.testing.assert_array_equal(again[name], ours[name], err_msg=name)


@pytest.mark.slow
def test_loading_and_exporting_hold_about_one_tensor(tmp_path):
    config = GPT2Config(context=64, vocab=2000, padded_vocab=2048, layers=8, heads=4, channels=256)
    ours = parameters(config)
    largest = max(array.nbytes for array in ours.values())
    tracemalloc.start()
    try:
        export_huggingface(tmp_path, config, ours.__getitem__, ByteTokenizer())
        exporting = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        for _ in load_huggingface(tmp_path)[1]:
            pass
        loading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert exporting < 1.5 * largest
    assert loading < 3.5 * ours["wte"].nbytes  # as read, padded, and the check for NaN
    assert sum(array.nbytes for array in ours.values()) > 3 * largest


def test_a_name_is_looked_for_in_the_data_directory_first(tmp_path):
    write(tmp_path / "gpt2", theirs())
    assert load("gpt2", data_dir=tmp_path)[0] == TINY


class Hub:
    """Stands in for huggingface_hub.hf_hub_download: a cache, a network, or neither."""

    def __init__(self, monkeypatch, cached: Path | None = None, online: Path | None = None):
        import huggingface_hub

        self.cached, self.online, self.asked = cached, online, []
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface, "probe", self.probe)

    def probe(self, url):
        if self.online is None:
            raise ConnectionError("no route to host")

    def download(self, repository, name, *, revision, etag_timeout, local_files_only):
        self.asked.append((repository, name, revision, local_files_only))
        folder = self.cached if local_files_only else self.online
        if folder is None:
            raise FileNotFoundError(name) if local_files_only else RuntimeError("503\nmore")
        return str(folder / name)


def test_cached_weights_need_no_network(tmp_path, monkeypatch):
    hub = Hub(monkeypatch, cached=write(tmp_path, theirs()))
    assert load("gpt2-medium")[0] == TINY
    commit = SIZES["gpt2-medium"].pretrained.revision
    assert {asked[::2] for asked in hub.asked} == {("openai-community/gpt2-medium", commit)}
    assert all(local for *_, local in hub.asked)


def test_weights_are_used_only_with_the_hash_that_is_known_here_or_that_the_hub_gave(
    tmp_path, monkeypatch
):
    Hub(monkeypatch, cached=write(tmp_path, theirs()))
    file, sha256 = tmp_path / "model.safetensors", SIZES["gpt2"].pretrained.sha256
    with pytest.raises(LadderError, match=f"{file} .*{sha256}") as refused:
        load("gpt2")
    assert not isinstance(refused.value, DownloadError), "random weights would take its place"
    content = file.read_bytes()
    blob = tmp_path / hashlib.sha256(content).hexdigest()
    file.rename(blob)
    file.symlink_to(blob.name)
    assert load("gpt2-medium")[0] == TINY
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(LadderError, match=blob.name):
        load("gpt2-medium")


def test_missing_weights_are_downloaded(tmp_path, monkeypatch):
    hub = Hub(monkeypatch, online=write(tmp_path, theirs()))
    assert load("gpt2-medium")[0] == TINY
    assert hub.asked[-1][1] == "model.safetensors" and not hub.asked[-1][-1]


def test_without_a_network_one_line_says_so(monkeypatch):
    Hub(monkeypatch)
    with pytest.raises(DownloadError, match="openai-community/gpt2-xl"):
        load("gpt2-xl")


def test_offline_by_choice_never_asks_the_network(monkeypatch):
    import huggingface_hub

    hub = Hub(monkeypatch)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        load("gpt2")
    assert all(local for *_, local in hub.asked)


def logits_of(config: GPT2Config, ours: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Our logits (B,T,V), by the reference."""
    program = build(config, *tokens.shape, training=False)
    rungs = {call.op: find(call.op).rung(0) for call in program.evaluate}
    engine = Engine(program, open_device("cpu"), np.float32, rungs)
    for name, array in ours.items():
        engine.write(name, array)
    engine.write("tokens", tokens)
    engine.predict()
    return engine.read("logits")[..., : config.vocab]


@pytest.mark.torch
def test_transformers_loads_an_export_and_computes_the_same_logits(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = GPT2Config(context=32, vocab=97, padded_vocab=128, layers=3, heads=4, channels=48)
    ours = parameters(config)
    tokens = np.random.default_rng(0).integers(0, config.vocab, (2, 29)).astype(np.int32)
    export_huggingface(tmp_path / "export", config, ours.__getitem__, ByteTokenizer())
    model, loading = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path / "export", output_loading_info=True
    )
    assert not any(loading.values()), loading
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(tokens).long()).logits.numpy()
    logits = logits_of(config, ours, tokens)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())

    model.save_pretrained(tmp_path / "back")
    again, parameters_again = load(tmp_path / "back")
    assert again == config
    for name in PARAMETERS:
        np.testing.assert_array_equal(parameters_again[name], ours[name], err_msg=name)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_fuzz_damaged_weights_load_or_are_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    name = data.draw(st.sampled_from(["model.safetensors", "config.json"]))
    write(folder, theirs())
    path = folder / name
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    try:
        _, ours = load(folder)
    except LadderError:
        return
    finally:
        shutil.rmtree(folder)
    assert all(np.isfinite(array).all() for array in ours.values())
