"""AdamW and the global norm on cases that a formula settles."""

import ml_dtypes
import numpy as np
import pytest

from reference import adamw, global_norm

DEFAULTS = dict(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0, clip=0.0)


def step(weight, grad, *, decay=1.0, steps=1, norm=None, master=None, rng=None, **hyper):
    m, v = np.zeros(grad.shape, grad.dtype), np.zeros(grad.shape, grad.dtype)
    norm = np.array([np.linalg.norm(grad) if norm is None else norm])
    for t in range(1, steps + 1):
        values = adamw.hyper(step=t, **{**DEFAULTS, **hyper}, dtype=np.float64)
        adamw.update(weight, m, v, master, grad, norm, values, rng, decay=decay)
    return m, v


@pytest.mark.parametrize(("norm", "factor"), [(10.0, 0.1), (0.5, 1.0)])
def test_clipping_scales_down_gradients_longer_than_clip(norm, factor):
    grad = np.array([3.0, -1.0])
    m, _ = step(np.zeros(2), grad, clip=1.0, norm=norm)
    np.testing.assert_allclose(m, 0.1 * factor * grad, rtol=1e-5)


def test_clip_0_is_no_clipping():
    m, _ = step(np.zeros(1), np.array([100.0]), clip=0.0)
    np.testing.assert_allclose(m, [10.0])


def test_a_scaled_loss_with_its_inverse_is_the_same_step():
    grad = np.random.default_rng(0).standard_normal(50)
    plain, scaled = np.ones(50), np.ones(50)
    step(plain, grad, clip=1.0)
    step(scaled, 1024 * grad, clip=1.0, inv_scale=1 / 1024)
    np.testing.assert_allclose(scaled, plain, rtol=1e-12)


def test_master_copy_is_updated_and_rounded_into_the_weight():
    master = np.array([1.0, 1.0])
    weight = np.array([5.0, 5.0], np.float16)  # not read
    step(weight, np.array([1.0, -1.0]), lr=1e-5, master=master)
    np.testing.assert_allclose(master, [1 - 1e-5, 1 + 1e-5], rtol=1e-9)
    np.testing.assert_array_equal(weight, np.float16([1.0, 1.0]))


def test_random_rounding_keeps_steps_alive_that_rounding_to_nearest_loses():
    """Every step is a fortieth of the gap between neighbouring weights."""
    grad = np.ones(4096, np.float32)
    nearest, at_random = (np.ones(4096, ml_dtypes.bfloat16) for _ in range(2))
    for seed in range(200):
        step(nearest, grad, lr=1e-4)
        step(at_random, grad, lr=1e-4, rng=np.array([seed, 0, 0, 0], np.uint32))
    assert (nearest == 1).all()
    moved = 1 - at_random.astype(np.float64)
    assert abs(moved.mean() - 200 * 1e-4) < 4 * moved.std() / 64


def test_a_master_copy_moves_as_if_nothing_were_rounded_at_random():
    grad = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    masters = [np.ones(1000, np.float32) for _ in range(2)]
    weights = [np.ones(1000, ml_dtypes.bfloat16) for _ in range(2)]
    step(weights[0], grad, lr=1e-3, master=masters[0])
    step(weights[1], grad, lr=1e-3, master=masters[1], rng=np.arange(4, dtype=np.uint32))
    np.testing.assert_array_equal(*masters)
    differ = weights[0] != weights[1]
    assert 0 < np.count_nonzero(differ) < 1000
    gap = np.abs(weights[1].astype(np.float32) - masters[1])
    assert gap.max() < 2**-7


def test_many_blocks_are_the_same_as_one_by_one():
    N = 3 * 2**16 + 5
    grad = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    whole, part = np.ones(N, np.float32), np.ones(N, np.float32)
    step(whole, grad, norm=1.0)
    for block in (slice(0, 1000), slice(1000, 2**17), slice(2**17, N)):
        step(part[block], grad[block], norm=1.0)
    np.testing.assert_array_equal(whole, part)


def test_corrections_belong_to_the_rounded_betas():
    values = adamw.hyper(step=1, **{**DEFAULTS, "beta2": 0.999})
    assert values.dtype == np.float32 and len(values) == len(adamw.HYPER)
    named = dict(zip(adamw.HYPER, values, strict=True))
    assert named["correction2"] == np.float32(1 - float(named["beta2"]))
    assert named["inv_scale"] == 1


def test_global_norm_is_the_euclidean_length():
    grad = np.random.default_rng(0).standard_normal(2**20 + 77).astype(np.float32)
    norm = np.full(1, np.nan, np.float32)
    global_norm.forward(norm, grad)
    np.testing.assert_allclose(norm[0], np.linalg.norm(grad.astype(np.float64)), rtol=1e-6)
