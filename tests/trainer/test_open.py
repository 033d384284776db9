"""What all commands open their models by."""

from trainer.open import built_once


def test_a_program_is_built_once_however_its_fusions_are_named():
    asked = []
    build = built_once(lambda B, fusions: asked.append((B, fusions)) or object())
    one = build(4, ["matmul_gelu", "residual_layernorm"])
    assert build(4, ("residual_layernorm", "matmul_gelu")) is one
    assert build(4, {"residual_layernorm", "matmul_gelu"}) is one
    assert build(4, ()) is not one and build(2, ("matmul_gelu",)) is not one
    assert asked[1:] == [(4, ()), (2, ("matmul_gelu",))]
