"""Seeds of 64 bits, and counts, numbers and keys that are checked where they arrive."""

import jax
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.errors import OptionError, arguments


def data(seed):
    return np.asarray(jax.random.key_data(arguments.key_of_seed(seed))).tolist()


def test_all_64_bits_of_a_seed_count():
    for is_wide in (False, True):
        with jax.enable_x64(is_wide):
            assert data(5) == np.asarray(jax.random.key_data(jax.random.key(5))).tolist()
            seeds = (5, 5 + 2**32, 5 + 2**33, 2**32, 2**63 + 5, 2**64 - 1)
            assert len({tuple(data(seed)) for seed in seeds}) == len(seeds)
    with jax.enable_x64(False):
        narrow = data(2**40 + 3)
    assert narrow == data(2**40 + 3)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "0", None])
def test_other_seeds_are_refused(seed):
    with pytest.raises(OptionError, match="seed"):
        arguments.seed_number(seed)


def test_seeds_that_agree_in_32_bits_give_different_draws():
    options = {"sampler": "gibbs", "draws": 20, "chains": 2, "warmup": 0, "precision": "float32", "progress": "off"}
    target = tz.Target(lambda t: 0.0 * t.sum().astype(float), tz.binary(10), probe=False)
    low, high = (tz.sample(target, seed=seed, **options).codes for seed in (3, 3 + 2**32))
    assert (low != high).any()
    options = {"progress": "off", "num_rounds": 2, "chains": 1, "enumerate_up_to": 1}
    assert tz.maximize(target, seed=2**64 - 1, **options).log_prob == 0


def test_a_maximum_prints_one_line():
    best = tz.maximize(lambda t: -1.0 * t.sum().astype(float), tz.binary(5), seed=0, progress="off")
    text = repr(best)
    assert "\n" not in text
    assert len(text) < 200
    assert "history" not in text
    assert best.flat.dtype == best.theta.dtype == np.int64
