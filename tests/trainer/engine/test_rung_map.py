"""Which rung a call runs, where an op has several: by the keys of --rung, files and checkpoints."""

from collections import Counter

import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import key_of, split_key
from trainer.engine.rung_map import keys_of, rung_of, with_rung
from trainer.model.calls import Call

QKV, PROJECTION, HEAD = ((("N", 64), ("C", 768), ("OC", columns)) for columns in (2304, 768, 50304))


def call(shape, op="matmul.forward"):
    return Call(op, (), dict(shape), {}, "")


def test_a_key_is_an_op_or_an_op_at_a_shape():
    assert key_of("gelu.forward", {}) == "gelu.forward"
    assert key_of("matmul.forward", {"C": 768, "OC": 2304}) == "matmul.forward@C:768,OC:2304"
    assert split_key("matmul.forward@C:768,OC:2304") == (
        "matmul.forward",
        {"C": 768, "OC": 2304},
    )
    assert split_key("gelu.forward") == ("gelu.forward", {})


@pytest.mark.parametrize(
    "shape", ["", "C", "C:", "C:x", "C:-1", "C:1,", "C=1", "C:1 OC:2", "C:" + "9" * 5000]
)
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(LadderError, match=f"^'matmul.forward@{shape}' .*@C:768,OC:2304"):
        split_key(f"matmul.forward@{shape}")


def test_the_key_with_the_most_dimensions_decides():
    named = {
        "matmul.forward@C:768": "b",
        "matmul.forward": "a",
        "matmul.forward@OC:768,C:768": "c",
        "matmul.forward@C:384": "d",
    }
    assert rung_of(named, call(PROJECTION)) == "c"
    assert rung_of(named, call(QKV)) == "b"
    assert rung_of(named, call((("N", 64), ("C", 96), ("OC", 768)))) == "a"
    with pytest.raises(KeyError):
        rung_of({"matmul.forward@C:384": "d"}, call(QKV))


def test_the_fewest_keys_tell_the_shapes_apart():
    one, two = find("matmul.forward").rung(1), find("matmul.forward").rung(2)
    counts = Counter({QKV: 12, PROJECTION: 12, HEAD: 1})
    assert set(keys_of("matmul.forward", dict.fromkeys(counts, one), counts)) == {"matmul.forward"}
    rungs = {QKV: one, PROJECTION: two, HEAD: one}
    assert keys_of("matmul.forward", rungs, counts) == {
        "matmul.forward": [QKV, HEAD],
        "matmul.forward@OC:768": [PROJECTION],
    }


def test_a_rung_can_take_the_place_of_all_of_an_op():
    one, two = find("matmul.forward").rung(1), find("matmul.forward").rung(2)
    rungs = {"matmul.forward": one, "matmul.forward@OC:768": one, "gelu.forward": one}
    assert with_rung(rungs, "matmul.forward", two) == {"matmul.forward": two, "gelu.forward": one}
