"""Weights in the formats of other programs: `python -m trainer export RUN --to hf -o FOLDER`.

    --to hf           a folder for transformers: weights in float32, configuration, tokenizer
    --to llmc         llm.c's model file in float32, such as its gpt2_124M.bin
    --to llmc-bf16    the same in bfloat16
    --to debug-state  a batch, and the logits, the loss and the gradients that the model has on it,
                      in float32: what llm.c's test_gpt2 compares a step with
    --to tokenizer    the tokenizer's file, with which llm.c's programs print what they sample

One tensor is held in memory at a time; a debug state, though, takes a step of training in NumPy.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ladder.core.common.errors import LadderError
from trainer.commands.parser import build_parser
from trainer.data.datasets import prepare
from trainer.data.download import data_directory
from trainer.data.token_files import TokenLoader
from trainer.data.tokenizers import get_tokenizer
from trainer.engine.passes import one_batch
from trainer.files import huggingface, kept_model, llmc_files, weights
from trainer.flags import DeviceChoice, Flags, resolve_sequence
from trainer.open import builder, open_machine

FORMATS = ("hf", "llmc", "llmc-bf16", "debug-state", "tokenizer")


def main(argv: Sequence[str]) -> int:
    to, flags = parse(argv)
    name, data_dir = flags.value("model"), data_directory(flags.data_dir)
    if flags.output is None:
        raise LadderError("-o is missing: name the file to write, with --to hf the folder")
    output = Path(flags.output)
    _refuse_output(output, folder=to == "hf")
    if to == "tokenizer":
        tokenizer = get_tokenizer(flags.tokenizer or weights.tokenizer_of(name), data_dir)
        llmc_files.save_tokenizer(output, tokenizer)
        print(f"{output}: the tokenizer {tokenizer.name}, {tokenizer.vocab} tokens")
        return 0
    model, tokenizer = weights.open_with_tokenizer(flags)
    if model.note is not None:  # other weights than those that were asked for
        raise LadderError(f"{name}: {model.note.removeprefix(f'{weights.INSTEAD} {name}: ')}")
    if to == "debug-state":
        text = prepare(flags.value("dataset"), data_dir, tokenizer.name, fallback=False)
        on_cpu = DeviceChoice("cpu", False, "fp32")
        B, T = flags.value("batch"), resolve_sequence(flags, on_cpu, model.shape.context)
        loss = write_debug_state(output, model, text.val, B, T)
        print(f"{output}: B={B} T={T}, loss {loss:.6f}, weights: {model.source}")
        return 0
    if to == "hf":
        kept_model.write(output, model.shape, whole_parameters(model), tokenizer)
    else:
        dtype = "bfloat16" if to == "llmc-bf16" else "float32"
        llmc_files.save_model(output, model.shape, whole_parameters(model), dtype)
    print(f"{output}: {model.shape.summary}, weights: {model.source}")
    return 0


def parse(argv: Sequence[str]) -> tuple[str, Flags]:
    """The format, and the flags that have the same meaning in training."""
    names = ("output", "tokenizer", "data_dir", "seed", "dataset", "batch", "sequence")
    helps = {
        "output": "the file to write, with --to hf the folder",
        "seed": "of random weights",
        "dataset": "of --to debug-state: the text whose validation part begins with the batch",
        "batch": "of --to debug-state: sequences; default 4",
        "sequence": "of --to debug-state: tokens of a sequence; default 64",
    }
    description = "Write a model's weights in the format of another program."
    parser = build_parser("python -m trainer export", description, names, helps=helps)
    parser.add_argument("model", help="the folder of a run, or whatever else -e takes in training")
    parser.add_argument("--to", choices=FORMATS, required=True, metavar=" | ".join(FORMATS))
    words = vars(parser.parse_args(argv))
    return words.pop("to"), Flags(**words)


def write_debug_state(path: Path, model: weights.Model, tokens: str, B: int, T: int) -> float:
    """llm.c's debug state of the first batch of some token files; returns the loss."""
    shape = model.shape.without_dropout()
    batch, targets = TokenLoader(tokens, B, T, vocab=shape.vocab, shuffle=False).next_batch()
    machine = open_machine(Flags(device="cpu", dtype="fp32"))
    build_at = builder(shape, T, master_weights=False)
    engine = machine.engine(machine.choose(build_at, B), build_at, model.pieces)
    logits, loss = one_batch(engine, batch, targets)
    gradients = {name: engine.read("d" + name) for name in shape.parameters()}
    state = llmc_files.State(batch, targets, logits, loss, gradients)
    llmc_files.save_state(path, shape, state)
    return loss


def whole_parameters(model: weights.Model) -> Callable[[str], np.ndarray]:
    """A function that returns the parameters, each once and in their order, put together."""
    pieces, shapes = iter(model.pieces), model.shape.parameter_shapes()

    def read(name: str) -> np.ndarray:
        whole = np.empty(shapes[name], np.float32)
        missing = whole.size
        while missing:
            piece_of, layer, array = next(pieces)
            assert piece_of == name, f"{name} was asked for, and {piece_of} comes next"
            target = whole if layer is None else whole[layer]
            target[...] = array
            missing -= target.size
        return whole

    return read


def _refuse_output(output: Path, *, folder: bool) -> None:
    """Raise LadderError where something else is instead of what is to be written."""
    if not folder and output.is_dir():
        raise LadderError(f"-o {output} is a folder; name a file")
    if folder and output.exists():
        if not output.is_dir():
            raise LadderError(f"-o {output} is a file; name a folder")
        if any(output.iterdir()) and not (output / huggingface.WEIGHTS).exists():
            raise LadderError(f"-o {output} holds other files; name a new folder")
