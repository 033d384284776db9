"""The table of PTX instructions is read out of the headers as the compiler would read them."""

from ladder.core.contract.device_code import INCLUDE
from ladder.core.show import wrappers

MULTICAST = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


def of(name):
    text = (INCLUDE / name).read_text(encoding="utf-8")
    return {wrapper.name: wrapper for wrapper in wrappers.of_header(text)}


def test_functions_that_macros_define_are_found_with_their_instructions():
    found = of("mma.cuh")
    assert found["ldmatrix_x4_trans"].instructions == (
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
    )
    assert found["mma_m16n8k16_bf16"].instructions == (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    )
    wgmma = [f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16" for n in (64, 128, 192, 256)]
    hopper = of("hopper.cuh")
    assert hopper["wgmma_m64k16_fp16"].instructions == tuple(wgmma)
    assert hopper["wgmma_m64k16_fp16_registers"].instructions == (wgmma[0],)


def test_labels_declarations_and_jumps_are_no_instructions():
    hopper = of("hopper.cuh")
    assert hopper["mbarrier_wait"].instructions == ("mbarrier.try_wait.parity.shared::cta.b64",)
    assert hopper["cluster_rank"].instructions == ("mov.u32 %cluster_ctarank",)
    assert hopper["tma_load_2d_multicast"].instructions == (MULTICAST + ".multicast::cluster",)
    assert "wgmma_pin" not in hopper  # its asm is empty


def test_every_function_has_the_first_sentence_of_its_comment():
    names = ("async.cuh", "fast_math.cuh", "hopper.cuh", "mma.cuh")
    found = [wrapper for name in names for wrapper in of(name).values()]
    assert len(found) > 30 and all(wrapper.meaning[:1] != "" for wrapper in found)
    assert of("async.cuh")["cp_async_16"].meaning.startswith("Starts a copy of 16 bytes")


def test_a_header_of_macros_alone_has_no_wrappers():
    assert list(wrappers.of_header("#pragma once\n#define HALF(x) ((x) / 2)\n")) == []
