"""Which argument of the op an argument of somebody else's kernel is, by its name."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from ladder.core.adopt.declarations import Parameter
from ladder.core.contract.op import Op

# Names that other people give to what is called so here. Ours come first where both exist.
SYNONYMS: Mapping[str, str] = {
    "out": "output y o result res dst normed",
    "inp": "input x in a src data values",
    "weight": "w gamma g",
    "bias": "b beta",
    "mean": "mu means",
    "rstd": "inv_std invstd invvar rsigma",
    "dinp": "dx grad_input grad_in",
    "dout": "dy grad_output grad_out",
    "dweight": "dw dgamma grad_weight",
    "dbias": "db dbeta grad_bias",
    "probs": "out output y p softmax result",
    "logits": "inp input x dlogits in",
    "dlogits": "dinp dx grad_input",
    "dprobs": "dout dy grad_output",
    "targets": "target labels label y",
    "losses": "loss",
    "tokens": "inp idx ids token_ids input_ids input x",
    "residual": "resid res",
    "inp1": "a x x1 lhs residual",
    "inp2": "b y x2 rhs inp",
    "total": "out output sum result y",
    "norm": "out output result",
    "grad": "grads data values inp input",
    "lse": "l logsumexp",
    "N": "rows n_rows num_rows nrows m size count num_elements numel n_elements length len n",
    "C": "cols n_cols ncols d h dim hidden hidden_size channels n_embd",
    "V": "vocab vocab_size c cols n_cols ncols d dim n",
    "Vp": "p padded_vocab_size v_padded",
    "OC": "out_features out_channels",
    "NH": "n_head n_heads num_heads nheads heads",
    "B": "batch batch_size",
    "T": "seq_len seqlen seq sequence_length",
}
BLOCK_NAMES = re.compile(r"(block_?(size|dim)|(num_?|n_?)?threads(_?per_?block)?|nthreads)", re.I)


def match(
    op: Op, theirs: Sequence[Parameter], given: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """{their name: ours} of those that are not `given`; what is not in it has no counterpart. B and
    T of an op with rows only are `1` and `N`. And what to ask where two numbers of theirs could be
    the same one of ours, as M and N of a product."""
    numbers = [one.name for one in theirs if not one.pointer]
    theirs = [one for one in theirs if one.name not in given]
    buffers = [arg.name for arg in op.args]
    values = [*op.dims, *(scalar.name for scalar in op.scalars)]
    meant: dict[str, str] = {}
    for one in theirs:
        if one.name in (buffers if one.pointer else values):
            meant[one.name] = one.name
    for one in theirs:
        if one.name in meant:
            continue
        ours = buffers if one.pointer else values
        free = [name for name in ours if name not in meant.values() or not one.pointer]
        alike = [name for name in free if _alike(one.name, name)]
        unused = [name for name in alike if name not in meant.values()]
        if chosen := (unused or ([] if one.pointer else alike))[:1]:
            meant[one.name] = chosen[0]
    known = {**given, **meant}
    doubles = [*_doubles(op, {name: known[name] for name in numbers if name in known}, given)]
    if "N" in op.dims and not {"B", "T"} & set(op.dims):
        for one in theirs:
            if not one.pointer and one.name in ("B", "T") and one.name not in meant:
                meant[one.name] = "1" if one.name == "B" else "N"
    return meant, doubles


def _doubles(op: Op, numbers: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    """`numbers`: what each number of theirs is, by its name or as it was given."""
    for ours in sorted(set(numbers.values())):
        same = [name for name, other in numbers.items() if other == ours]
        asked = [name for name in same if name not in given]
        if len(same) > 1 and asked:
            taken = {other for name, other in numbers.items() if name not in asked}
            free = [name for name in op.dims if name not in taken] or [ours]
            pairs = itertools.zip_longest(asked, free[: len(asked)], fillvalue=free[-1])
            flags = " ".join(f"--arg {name}={other}" for name, other in pairs)
            yield (
                f"{' and '.join(same)} could both be {ours} of {op.name}; say which is what of "
                f"{', '.join(op.dims)}, such as: {flags}"
            )


def _alike(theirs: str, ours: str) -> bool:
    plain = theirs.lower().removeprefix("d_") if len(theirs) > 3 else theirs.lower()
    known = [ours.lower(), *SYNONYMS.get(ours, "").split()]
    return plain.replace("_", "") in [name.replace("_", "") for name in known]
