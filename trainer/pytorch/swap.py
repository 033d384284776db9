"""transformers' GPT-2 with the kernels of the ladders.

    model = GPT2LMHeadModel.from_pretrained("gpt2").cuda()
    swap(model, dtype="bf16")
    model(tokens, labels=tokens).loss.backward()

It refuses models that the kernels would compute otherwise than transformers, and leaves calls to
transformers that ask for more than loss and logits.
"""

import functools
import inspect
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.core.common.errors import LadderError
from trainer.files.huggingface import config_of, named_tensors
from trainer.model.gpt2 import GPT2Config
from trainer.pytorch.gpt2 import GPT2, IGNORED

# The options of a call that need nothing more than loss and logits.
TAKEN = {
    **dict.fromkeys(("use_cache", "output_attentions", "output_hidden_states"), (None, False)),
    **{"return_dict": (None, True), "logits_to_keep": (None, 0)},
}


def swap(model: Any, **flags: Any) -> Any:
    """Let transformers' GPT2LMHeadModel compute with our kernels; it is called as before.

    flags  of the trainer, as keywords: dtype ("fp32", "bf16"), rungs ("best", ...), rung, fuse

    Parameters, float32, keep their names, shapes and values; matrices are laid out anew, as our
    kernels read them. With labels and gradients, the output has no logits, which become their own
    gradient. Calls with masks, caches and the like go to the old forward.

    Raises LadderError for a model that is not GPT-2 as it was published, and the calls raise it
    where parts were changed since.
    """
    from transformers import GPT2LMHeadModel
    from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions

    if not isinstance(model, GPT2LMHeadModel):
        raise LadderError(f"swap takes transformers' GPT2LMHeadModel, not {type(model).__name__}")
    c, where, old = model.config, Path("model.config"), model.forward
    config = config_of(c.to_dict(), where)
    tied = model.lm_head.weight is model.transformer.wte.weight
    if not isinstance(config, GPT2Config) or not tied or c.embd_pdrop != c.resid_pdrop:
        raise LadderError(f"{where}: it must be GPT-2, with embd_pdrop and resid_pdrop the same")
    with torch.device("meta"):
        published = GPT2LMHeadModel(c)
    for name, layer in published.named_children():
        if repr(model.get_submodule(name)) != repr(layer):
            raise LadderError(f"the layers of {name} are not those that {where} asks for")
    if getattr(old, "__func__", None) is not GPT2LMHeadModel.forward:
        raise LadderError("the model has a forward of its own, which would not run")
    config = replace(config, dropout=c.resid_pdrop, attention_dropout=c.attn_pdrop)
    form = config.hugging_face
    assert form is not None
    parameters, across = [], []
    for name, _, theirs in named_tensors(form, config):
        parameters.append(model.get_parameter(form.prefix + theirs))
        across.append(form.tensors[name][1])
        if across[-1]:  # (in, out) becomes a view of (out, in)
            parameters[-1].data = parameters[-1].data.t().contiguous().t()
    ours, signature = GPT2(config, parameters, across, **flags), inspect.signature(old)
    modules = [*model.modules()]
    both = [held for module in modules for held in (module._parameters, module._modules)]
    parts = [(held, name, part) for held in both for name, part in held.items()]
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [getattr(module, kind) for module in modules[1:] for kind in kinds]
    dropouts = [module for module in modules if isinstance(module, torch.nn.Dropout)]
    rates = [dropout.p for dropout in dropouts]

    @functools.wraps(old)
    def forward(*args: Any, **more: Any) -> Any:
        given = signature.bind(*args, **more).arguments
        given |= given.pop("kwargs", {})
        tokens, labels = given.pop("input_ids", None), given.pop("labels", None)
        of_config = {name: getattr(c, name, None) for name in TAKEN if name != "use_cache"}
        asked = of_config | {name: value for name, value in given.items() if value is not None}
        other = [
            name
            for name, value in asked.items()
            if isinstance(value, Tensor) or value not in TAKEN.get(name, ())
        ]
        if other or tokens is None:
            if torch.is_grad_enabled():
                warnings.warn(f"transformers' own kernels run, for {other}", stacklevel=5)
            return old(*args, **more)
        if any(held.get(name) is not part for held, name, part in parts):
            raise LadderError("a part was replaced; load_state_dict without assign=True")
        if any(hooks) or model.loss_function is not published.loss_function:
            raise LadderError("a layer has a hook, or the model a loss, which would not run")
        active = [dropout.p * dropout.training for dropout in dropouts]
        if any(active) and active != rates:
            raise LadderError("dropout acts in some layers only: set it in the config, then swap")
        if labels is not None:  # row t is to predict token t + 1
            labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        loss, logits = ours(tokens, labels, any(active))
        return CausalLMOutputWithCrossAttentions(loss=loss, logits=logits)

    model.forward, model.kernel_ladder = torch.compiler.disable(forward), ours
    return model
