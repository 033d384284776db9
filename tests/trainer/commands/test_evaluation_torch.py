"""The accuracies that PyTorch finds as llm.c's dev/data/hellaswag.py does: four padded rows, the
losses of the completion picked by a mask."""

import numpy as np
import pytest

from tests.trainer.cpu_engines import cpu_engine, write_weights
from trainer.data.benchmarks import Question, tokenized
from trainer.data.multiple_choice import read_examples, write_examples
from trainer.data.tokenizers import ByteTokenizer
from trainer.engine.scoring import Score, evaluate
from trainer.model.gpt2 import GPT2Config

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.golden import torch_gpt2  # noqa: E402

SHAPE = GPT2Config(context=64, vocab=257, padded_vocab=384, layers=2, heads=2, channels=32)


def made_set(count):
    rng = np.random.default_rng(5)

    def words(most):
        letters = [chr(97 + x) for x in rng.integers(0, 26, rng.integers(1, most))]
        return "".join(letters)

    return [
        Question(words(20), [words(30) for _ in range(4)], int(rng.integers(4)))
        for _ in range(count)
    ]


def accuracies_by_torch(weights, questions):
    """(right by the sum, right by the mean) of the losses."""
    encode = ByteTokenizer().encode
    tokens = torch.zeros((4 * len(questions), SHAPE.context), dtype=torch.long)
    mask = torch.zeros(tokens.shape)
    for i, question in enumerate(questions):
        context = encode(question.context)
        for row, ending in enumerate(question.endings, 4 * i):
            ids = context + encode(" " + ending)
            tokens[row, : len(ids)] = torch.tensor(ids)
            mask[row, len(context) : len(ids)] = 1
    with torch.no_grad():
        logits = torch_gpt2.logits_of(weights, tokens, SHAPE.heads)
    losses = -torch.log_softmax(logits[:, :-1], dim=-1)
    losses = losses.gather(2, tokens[:, 1:, None])[..., 0] * mask[:, 1:]
    sums = losses.sum(dim=1)
    means = sums / mask[:, 1:].sum(dim=1)
    labels = torch.tensor([question.label for question in questions])
    return [int((x.view(-1, 4).argmin(dim=1) == labels).sum()) for x in (sums, means)]


def test_the_accuracies_are_those_of_pytorch(tmp_path):
    sizes = {name: getattr(SHAPE, name) for name in ("context", "vocab", "layers", "channels")}
    weights = torch_gpt2.random_weights(**sizes, seed=2, dtype=torch.float32)
    questions = made_set(80)
    by_sum, by_mean = accuracies_by_torch(weights, questions)
    assert by_sum != by_mean  # so that the two can be told apart
    write_examples(tmp_path / "x.bin", [tokenized(q, ByteTokenizer()) for q in questions])
    engine = cpu_engine(SHAPE, 6, 52, np.dtype(np.float32), training=False)
    write_weights(engine, ((name, w.detach().numpy()) for name, w in weights.items()))
    score = evaluate(engine, read_examples(tmp_path / "x.bin", vocab=257))
    assert score == Score(80, by_sum, by_mean)
