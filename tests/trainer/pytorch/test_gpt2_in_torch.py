"""GPT-2 by our kernels in PyTorch: its loss, logits and every gradient beside PyTorch's own."""

import copy
import dataclasses
import inspect

import numpy as np
import pytest

import kernel_ladder
from ladder.core.call import arrays
from ladder.core.common.errors import LadderError
from tests.ladder.core.call.by_address import ByAddress
from tests.trainer.tiny import SHAPE, add_size
from trainer.commands import torch_gpt2
from trainer.model.program import initial_parameters

torch = pytest.importorskip("torch")
kl = kernel_ladder.torch
gpu_in_torch = pytest.importorskip("tests.gpu_in_torch")

pytestmark = [pytest.mark.torch, pytest.mark.emulator]

B, T, V = 2, 8, SHAPE.vocab
NAIVE = {"rungs": "naive", "fuse": "all"}


class Plain:
    """PyTorch's own, called as ours."""

    def __init__(self, weights):
        self.weights = weights

    def __call__(self, tokens, targets=None):
        logits = torch_gpt2.logits_of(self.weights, tokens, SHAPE.heads)
        loss = None if targets is None else torch_gpt2.loss_of(logits, targets)
        return loss, logits


def models(**flags):
    """Ours, PyTorch's, and the parameters of both."""
    weights, flat = {}, []
    for name, array in initial_parameters(SHAPE, seed=0):
        whole = torch.from_numpy(array[:V] if name == "wte" else array) * 4  # nothing is near 0
        stacked = SHAPE.parameters()[name].stacked
        parts = [part.clone().requires_grad_() for part in (whole if stacked else [whole])]
        weights[name] = parts if stacked else parts[0]
        flat += parts
    return kl.GPT2(SHAPE, flat, [False] * len(flat), **flags), Plain(weights), flat


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(0, V, (2, B, T), generator=generator)
    targets[0, 2:5] = kl.IGNORED
    return tokens, targets


def assert_same(ours, theirs, tolerance=1e-4):
    """Each tensor, by the size of the difference; the keys' bias has no gradient but rounding."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= tolerance * b.norm() + 1e-7


@pytest.mark.parametrize(
    ("flags", "tolerance"), [({}, 1e-4), (NAIVE, 1e-4), ({**NAIVE, "dtype": "bf16"}, 4e-2)]
)
def test_loss_logits_and_gradients_are_those_of_pytorch(flags, tolerance):
    ours, theirs, flat = models(**flags)
    tokens, targets = batch()
    results = []
    for model in (ours, theirs):
        loss, _ = model(tokens, targets)
        results.append([loss.detach(), *torch.autograd.grad(loss / 3, flat)])
        _, logits = model(tokens)
        weight = torch.linspace(-1, 1, logits.numel()).view(logits.shape)
        results[-1] += [logits.detach(), *torch.autograd.grad((logits * weight).mean(), flat)]
        with torch.no_grad():
            results[-1] += model(tokens, targets)
    assert_same(*results, tolerance)


@pytest.fixture
def by_address(monkeypatch):
    """Emulated, with PyTorch's memory by its addresses, as on a GPU."""
    gpt2, device = kl.gpt2, ByAddress()
    open_machine, place = gpt2.open_machine, arrays.Place("torch", 0, ByAddress.stream)
    monkeypatch.setattr(gpt2, "place_of", lambda tensor: place)
    monkeypatch.setattr(gpt2, "device_name", lambda gpu: "emulated")
    monkeypatch.setattr(
        gpt2, "open_machine", lambda flags: dataclasses.replace(open_machine(flags), device=device)
    )
    return device


def test_several_steps_that_accumulate_are_those_of_pytorch(by_address):
    """Two forward passes before the first backward pass; gradients that add up; a second shape; an
    optimizer's steps: memory is used again, at other places, too."""
    ours, theirs, flat = models(**NAIVE, dtype="fp32")
    for step in range(3):
        gradients = []
        for model in (ours, theirs):
            for p in flat:
                p.grad = None
            losses = [model(*batch(seed=2 * step + i))[0] for i in range(2)]
            (losses[0] + 2 * losses[1]).backward()
            tokens, targets = batch(seed=step)
            model(tokens[:, : 4 + step % 2], targets[:, : 4 + step % 2])[0].backward()
            gradients.append([p.grad for p in flat])
        assert_same(*gradients)
        with torch.no_grad():
            for p in flat:
                p -= 0.1 * p.grad
    bound = by_address.borrowed
    ours(*batch())[0].backward()
    assert by_address.borrowed <= bound + 1  # the gradients


SETTINGS = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}


def two_steps(ours, optimizer, flat, first):
    """Losses, and norms before clipping; the second step's gradients are of two batches."""
    seen = []
    for step in (first, first + 1):
        for i in range(1 + step % 2):
            loss, _ = ours(*batch(seed=10 * step + i))
            loss.backward()
        if isinstance(optimizer, kl.AdamW):
            if step % 2:  # gradients that lie somewhere else
                flat[3].grad = flat[3].grad.clone()
            optimizer.step()
            norm = optimizer.norm[0].clone()
        else:
            norm = torch.nn.utils.clip_grad_norm_(flat, 0.5)
            optimizer.step()
        optimizer.zero_grad()
        seen += [loss.detach(), norm]
    return seen


def their_adamw(flat):
    """PyTorch's, with the decay of ours: of matrices alone."""
    decay = [SETTINGS["weight_decay"] * (p.dim() > 1) for p in flat]
    groups = [{"params": [p], "weight_decay": d} for p, d in zip(flat, decay, strict=True)]
    return torch.optim.AdamW(groups, **SETTINGS)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_adamw_moves_parameters_as_that_of_pytorch(by_address, dtype):
    """With clipping, accumulated gradients, states that are saved and loaded, another rate, and a
    parameter that is written by hand between two steps."""
    parameters = SHAPE.parameters()
    names = [n for n, p in parameters.items() for _ in range(p.shape[0] if p.stacked else 1)]
    results, saved = [], []
    for own in (True, False):
        ours, _, flat = models(**NAIVE, dtype=dtype)

        def optimizer(flat=flat, ours=ours, own=own):
            return kl.AdamW(ours, **SETTINGS, max_norm=0.5) if own else their_adamw(flat)

        first = optimizer()
        seen = two_steps(ours, first, flat, 0)
        saved.append(copy.deepcopy(first.state_dict())["state"])
        second = optimizer()
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for group in second.param_groups:
            group["lr"] = 0.003
        seen += two_steps(ours, second, flat, 2)
        with torch.no_grad():
            flat[1].mul_(1.5)
        seen += two_steps(ours, second, flat, 4)
        for name, p in zip(names, flat, strict=True):  # the keys' bias follows rounding errors
            seen.append(gpu_in_torch.without_keys("qkvb", p[None]) if name == "qkvb" else p)
        results.append([t.detach().clone() for t in seen])
    tolerance = 1e-4 if dtype == "fp32" else 1e-2
    assert_same(*results, tolerance)
    mine, theirs = saved
    assert mine.keys() == theirs.keys()
    for i, state in theirs.items():
        assert mine[i]["step"] == state["step"] == 2
        if names[i] != "qkvb":
            assert_same([mine[i]["exp_avg"]], [state["exp_avg"]], 10 * tolerance)


def test_an_optimizer_of_ours_refuses_what_it_would_do_wrong():
    ours, _, flat = models()
    optimizer = kl.AdamW(ours)
    with pytest.raises(LadderError, match="no gradient"):
        optimizer.step()
    ours(*batch())[0].backward()
    optimizer.step()
    flat[0].data = flat[0].data.clone()
    with pytest.raises(LadderError, match="another memory"):
        optimizer.step()
    with pytest.raises(LadderError, match=r"swapped, not Linear"):
        kl.AdamW(torch.nn.Linear(2, 2))
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][1]["step"] += 1
    ours, _, flat = models()
    optimizer = kl.AdamW(ours)
    optimizer.load_state_dict(state)
    for p in flat:
        p.grad = torch.zeros_like(p)
    with pytest.raises(LadderError, match="without a mask"):
        optimizer.step()
    ours(*batch())
    with pytest.raises(LadderError, match=r"steps, not \[1.0, 2.0\]"):
        optimizer.step()


@pytest.mark.parametrize(
    "settings",
    [{name: bad} for name in ("lr", "eps", "weight_decay", "max_norm") for bad in (-1, np.nan)],
)
def test_settings_out_of_range_are_refused_by_name(settings):
    with pytest.raises(LadderError, match=min(settings)):
        kl.AdamW(models()[0], **settings)


@pytest.mark.parametrize("name", ["amsgrad", "maximize", "decoupled_weight_decay"])
def test_a_state_of_another_optimizer_is_refused_by_name(name):
    ours, _, flat = models()
    kind = torch.optim.Adam if name[0] == "d" else torch.optim.AdamW
    theirs = kind(flat, **({} if name[0] == "d" else {name: True}))
    with pytest.raises(LadderError, match=name):
        kl.AdamW(ours).load_state_dict(theirs.state_dict())


def test_a_step_that_fails_is_not_counted(monkeypatch):
    ours, _, _ = models()
    optimizer = kl.AdamW(ours)
    ours(*batch())[0].backward()
    optimizer.step()
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("trainer.pytorch.adamw._gradients", lambda *_: 1 / 0)
        optimizer.step()
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["step"] == 2


def test_weights_that_a_fused_optimizer_moves_are_cast(by_address):
    """It leaves the versions of parameters as they are."""
    ours, theirs, flat = models(**NAIVE, dtype="bf16")
    for kind in (kl.AdamW, torch.optim.AdamW):
        of, more = (ours, {}) if kind is kl.AdamW else (flat, {"fused": True})
        ours(*batch())[0].backward()
        kind(of, lr=0.02, **more).step()
        assert_same([ours(*batch())[0]], [theirs(*batch())[0]], 5e-3)


def test_a_rate_may_be_a_tensor_and_a_number_again():
    ours, _, flat = models()
    optimizer = kl.AdamW(ours)
    ours(*batch())[0].backward()
    for rate in (1e-3, torch.tensor(2e-3), 1e-3):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})  # a first step again
        optimizer.param_groups[0]["lr"] = rate
        before = flat[2].detach().clone()
        optimizer.step()
        moved = (before - flat[2]).abs().max().item()
        assert moved == pytest.approx(float(rate), rel=0.05)


def test_an_evaluation_takes_what_was_written_through_data(by_address):
    ours, theirs, flat = models(**NAIVE, dtype="bf16")
    with torch.inference_mode():
        ours(*batch())
    ours(*batch())[0].backward()
    kl.AdamW(ours).step()
    for factor, grad in ((0.5, False), (2, True)):  # as averages of weights come and go
        for p in flat:
            p.data.mul_(factor)
        with torch.set_grad_enabled(grad):
            assert_same([ours(*batch())[0]], [theirs(*batch())[0]], 5e-3)


def test_dropout_acts_in_training_only():
    shape = dataclasses.replace(SHAPE, dropout=0.2, attention_dropout=0.2)
    flat = models()[2]
    ours = kl.GPT2(shape, flat, [False] * len(flat))
    losses = [
        ours(*batch(), training=training)[0].item() for training in (True, True, False, False)
    ]
    assert len(set(losses)) == 3
    assert losses[2] == losses[3]


def test_what_would_be_wrong_is_refused():
    ours, _, flat = models()
    tokens, targets = batch()
    loss, _ = ours(tokens, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()
    loss, _ = ours(tokens, targets)
    with torch.no_grad():
        flat[0].mul_(2)
    with pytest.raises(RuntimeError, match="parameter"):
        loss.backward()
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(ours(tokens, targets)[0], flat, create_graph=True)
    for wrong in ((tokens + V, targets), (tokens, targets - 5)):
        with pytest.raises(RuntimeError, match=" 257"):
            ours(*wrong)
    for wrong in ((tokens, targets[:1]), (tokens[0], targets[0]), (tokens.float(), targets)):
        with pytest.raises(LadderError, match=r"\(B, T\)"):
            ours(*wrong)
    with pytest.raises(LadderError, match=r"fp16.*dtype='bf16'"):
        models(dtype="fp16")
    with pytest.raises(LadderError, match=r"float32 .*float16"):
        kl.GPT2(SHAPE, [p.half() for p in flat], [False] * len(flat))


def test_the_comparison_on_a_gpu_runs(monkeypatch, capsys):
    add_size(monkeypatch, "d2", layers=2, channels=32, heads=2)
    monkeypatch.setattr(gpu_in_torch, "UPDATES", 2)
    flags = ["steps", "-e", "d2", "-t", "8", "--device", "cpu"]
    assert gpu_in_torch.main(flags) == 0
    monkeypatch.setitem(gpu_in_torch.TOLERANCE, "bf16", 1e-3)
    assert gpu_in_torch.main(flags) == 1
    assert "bf16 graph" in capsys.readouterr().out


def their_model(**settings):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": V}
    off = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), 0.0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**{**size, **off, **ends, **settings})
    model = transformers.GPT2LMHeadModel(config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1)
    return model


def test_a_model_of_transformers_is_called_as_before(tmp_path):
    theirs = their_model()
    ours = kl.swap(copy.deepcopy(theirs))
    tokens, labels = batch()
    results = []
    for model in (ours, theirs):
        model(tokens, labels=labels).loss.backward()
        logits = model(tokens).logits.detach()
        masked = model(tokens, attention_mask=torch.ones_like(tokens)).logits.detach()
        results.append([logits, masked, *(p.grad for p in model.parameters())])
    assert_same(*results)
    for old, new in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(old, new)
        assert new.grad.stride() == new.stride()  # so that nobody has to copy it
    kl.AdamW(ours, lr=0.01).step()  # lays the parameters out anew
    ours.save_pretrained(tmp_path)
    again = type(theirs).from_pretrained(tmp_path)
    texts = [
        m.eval().generate(tokens[:1], max_new_tokens=4, do_sample=False) for m in (ours, again)
    ]
    assert np.array_equal(*texts)


def test_states_go_to_adamw_of_pytorch_and_back():
    theirs = torch.optim.AdamW
    results = []
    for kinds in ((kl.AdamW, theirs, kl.AdamW), (theirs,) * 3):
        model, state = their_model(), None
        model = kl.swap(model) if kl.AdamW in kinds else model
        for kind in kinds:
            of = model if kind is kl.AdamW else model.parameters()
            optimizer = kind(of, lr=0.01, weight_decay=0)
            if state is not None:
                optimizer.load_state_dict(state)
            model(batch()[0], labels=batch()[0]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state = optimizer.state_dict()
        assert all(each["step"] == 3 for each in state["state"].values())
        optimizer.state.clear()  # moments begin anew
        model(batch()[0], labels=batch()[0]).loss.backward()
        optimizer.step()
        results.append([p for name, p in model.named_parameters() if "attn.bias" not in name])
    assert_same(*results)


def test_a_swapped_model_is_neither_copied_nor_given_other_parameters():
    model = kl.swap(their_model())
    with pytest.raises(LadderError, match="copy a model before"):
        copy.deepcopy(model)
    inner = model.transformer.h[0].mlp
    inner.c_fc, before = copy.copy(inner.c_fc), inner.c_fc
    with pytest.raises(LadderError, match="replaced"):
        model(batch()[0])
    inner.c_fc, model.head = before, torch.nn.Linear(2, 2)
    with pytest.raises(LadderError, match="other parameters"):
        kl.AdamW(model)
    del model.head
    model.load_state_dict(their_model().state_dict(), assign=True)
    with pytest.raises(LadderError, match="without assign"):
        model(batch()[0])


def test_a_model_whose_layers_or_loss_are_others_is_not_swapped():
    class OwnForward(type(their_model())):
        def forward(self, *args, **more):
            return super().forward(*args, **more)

    others = [their_model() for _ in range(3)]
    others[0].transformer.h[1].mlp.act = torch.nn.ReLU()
    others[1].transformer.ln_f.eps = 0.5
    others[2].__class__ = OwnForward
    for model in others:
        with pytest.raises(LadderError, match=r"layers|forward"):
            kl.swap(model)
    hooked, other = kl.swap(their_model()), kl.swap(their_model())
    hooked.transformer.h[0].mlp.register_forward_hook(print)
    other.loss_function = print
    for model in (hooked, other):
        with pytest.raises(LadderError, match="would not run"):
            model(batch()[0])


def test_dropout_of_the_layers_and_a_cache_are_as_transformers_have_them():
    tokens = batch()[0]
    results = []
    for swapped in (True, False):
        model = their_model(attn_pdrop=0.5)
        model = (kl.swap(model) if swapped else model).train()
        model.transformer.eval()
        logits = model(tokens).logits.detach()
        first = model(tokens[:, :1], use_cache=True)
        both = {"past_key_values": first.past_key_values, "use_cache": True}
        results.append([logits, model(tokens[:, 1:2], **both).logits])
    assert_same(*results)
    model = kl.swap(model)
    assert "attention_mask" in inspect.signature(model.forward).parameters
    model.transformer.h[0].train()
    with pytest.raises(LadderError, match="some layers"):
        model(tokens)


def test_a_swapped_model_goes_through_the_compiler():
    model = kl.swap(their_model())
    tokens, labels = batch()
    loss = model(tokens, labels=labels).loss
    assert torch.compile(model)(tokens, labels=labels).loss.item() == loss.item()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"activation_function": "relu"}, "activation_function .*'relu'"),
        ({"embd_pdrop": 0.1}, "embd_pdrop .*resid_pdrop"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon"),
    ],
)
def test_another_model_is_not_swapped(settings, names):
    with pytest.raises(LadderError, match=names):
        kl.swap(their_model(**settings))
    with pytest.raises(LadderError, match=r"GPT2LMHeadModel.* Linear"):
        kl.swap(torch.nn.Linear(2, 2))
