"""AdamW for a model that computes with our kernels, as the trainer's program does it.

    optimizer = AdamW(model, lr=1e-4, max_norm=1.0)

One kernel computes the norm of all gradients. Another clips them, moves parameters and moments, and
writes the weights in the type of the run, which the next forward pass then need not cast.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ladder.core.call.arrays import as_array, place_of
from ladder.core.common.errors import LadderError
from trainer.pytorch.gpt2 import GPT2, Buffers, Passes

OTHERS = {"amsgrad": False, "maximize": False, "decoupled_weight_decay": True}  # of PyTorch's
MOMENTS = {"exp_avg": "{}.m", "exp_avg_sq": "{}.v"}  # as torch.optim.AdamW calls them


class AdamW(torch.optim.Optimizer):  # type: ignore[misc]
    """Moves all parameters of a model, whose memory it lays out anew at its first step.

    model         what `swap` has returned, or a GPT2
    weight_decay  of matrices and embeddings; biases and LayerNorms have none
    max_norm      gradients whose global norm is larger are scaled down to it; 0: never

    The states have the names that torch.optim.AdamW gives them. `norm` is the global norm at the
    last step, on the device. Parameters may be written in place, but not through `.data`.
    """

    def __init__(
        self,
        model: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        max_norm: float = 0.0,
    ) -> None:
        self._model = getattr(model, "kernel_ladder", model)
        if not isinstance(self._model, GPT2):
            raise LadderError(f"AdamW moves a model that was swapped, not {type(model).__name__}")
        own = self._model.parameters
        order = own if model is self._model else [*model.parameters()]  # as in PyTorch's states
        if {*order} != {*own}:
            raise LadderError("the model has other parameters than when it was swapped")
        more = {"eps": eps, "weight_decay": weight_decay, "max_norm": max_norm}
        for name, value in {"lr": lr, **more}.items():
            if not value >= 0:
                raise LadderError(f"{name} must be at least 0, not {value}")
        super().__init__(order, {"lr": lr, "betas": betas, **more})
        self._held: Buffers | None = None
        self._hyper, self.norm, self._steps = (
            torch.zeros(n, device=self._model.where) for n in (9, 1, len(own))
        )
        self._hyper[8] = 1  # the loss has no scale

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, ours in OTHERS.items():
            if any(group.get(name, ours) != ours for group in state_dict["param_groups"]):
                raise LadderError(f"the state is of an optimizer with {name}={not ours}")
        super().load_state_dict(state_dict)
        self.param_groups[0].setdefault("max_norm", self.defaults["max_norm"])  # not in PyTorch's

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Raises LadderError where a parameter has no gradient, or was moved to another memory."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        model, held = self._model, self._held
        if any(p.grad is None for p in model.parameters):
            raise LadderError("a parameter has no gradient; torch.optim.AdamW moves some of them")
        if held is not None and self._replaced():
            held = None
        passes, place = model.first, place_of(model.parameters[0])
        if passes is None:
            raise LadderError("the model was not yet called without a mask")
        if held is None:
            if place.recorded:
                raise LadderError("take one step before it is recorded")
            held = self._held = self._begin(passes)
        elif [p.data_ptr() for p in model.parameters] != self._places:
            raise LadderError("a parameter is in another memory; make its optimizer anew")
        gradients = _gradients(passes, model.parameters)
        self._write_hyper()  # counts the step, so what may fail comes before
        passes.run(place, "update", held, gradients)
        torch.autograd.graph.increment_version(model.parameters)
        model.cast_at = None if place.recorded else model.versions()
        return loss

    def _begin(self, passes: Passes) -> Buffers:
        """Parameters and states, with their values, become parts of the vectors that the kernels
        work on."""
        parameters, device = self._model.parameters, passes.device
        steps = {float(self.state[p].get("step", 0)) for p in parameters}
        if len(steps) > 1:
            raise LadderError(f"all parameters must have taken as many steps, not {sorted(steps)}")
        self._steps.fill_(steps.pop())
        held = Buffers(passes, "master", "moment")
        held.arrays |= {"hyper": as_array(self._hyper, device, "hyper")}
        held.arrays |= {"norm": as_array(self.norm, device, "norm")}
        wide = passes.real.itemsize >= 4  # then the weights of the kernels are exact
        exact = passes.each(passes.weights, "{}") if wide else passes.each(held, "{}.master")
        for p, weight in zip(parameters, exact, strict=True):
            weight.copy_(p)
            # A storage of its own: who saves the model takes tensors of one storage for tied ones.
            p.data = torch.from_dlpack(weight)
        for key, name in MOMENTS.items():
            for p, moment in zip(parameters, passes.each(held, name), strict=True):
                if key in self.state[p]:
                    moment.copy_(self.state[p][key])
                self.state[p][key] = moment
        for p, step in zip(parameters, self._steps, strict=True):
            self.state[p]["step"] = step
        self._places = [p.data_ptr() for p in parameters]
        entries = [self.state[p] for p in parameters]
        self._kept = self.state, [(of, key, of[key]) for of in entries for key in MOMENTS]
        return held

    def _replaced(self) -> bool:
        """Whether states are others than those that the kernels work on."""
        state, moments = self._kept
        same = self.state is state and len(state) == len(self._places)
        return not same or any(of.get(key) is not moment for of, key, moment in moments)

    def _write_hyper(self) -> None:
        """What the kernels read of this step, in the order of reference.adamw.HYPER."""
        (group,) = self.param_groups
        rest = (group[name] for name in ("eps", "weight_decay", "max_norm"))
        for place, value in enumerate((group["lr"], *group["betas"], *rest)):
            cell = self._hyper[place]
            cell.copy_(value) if isinstance(value, Tensor) else cell.fill_(value)
        self._steps += 1
        betas = self._hyper[1:3].double()  # as the kernels read them
        self._hyper[6:8].copy_(1 - betas ** self._steps[0])


def _gradients(passes: Passes, parameters: list[Tensor]) -> Buffers:
    """The memory that a backward pass has left them in; where they are elsewhere, a copy."""
    grads: list[Any] = [p.grad for p in parameters]
    storage = grads[0].untyped_storage()
    if storage.nbytes() == sum(passes.layout.bytes_of(["gradient"]).values()):
        memory = torch.empty(0, dtype=torch.uint8, device=grads[0].device).set_(storage)
        buffers = Buffers(passes, "gradient", given=memory)
        if [g.data_ptr() for g in passes.each(buffers, "d{}")] == [g.data_ptr() for g in grads]:
            return buffers
    buffers = Buffers(passes, "gradient")
    torch._foreach_copy_([*passes.each(buffers, "d{}")], grads)
    return buffers
