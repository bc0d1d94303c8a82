"""Spaces: flat integers inside, the user's values outside, and the way back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.spaces import as_space

MIXED = tz.Space(
    gene=tz.binary(3, dims="gene", coords={"gene": ["x", "y", "z"]}),
    count=tz.integers(-2, 65533),
    colour=tz.categorical(["red", "green"], (2, 2)),
)


def test_sizes_and_names():
    assert MIXED.num_dims == 8
    assert MIXED.sizes.tolist() == [2, 2, 2, 65536, 2, 2, 2, 2]
    assert MIXED.is_ordered.tolist() == [True] * 4 + [False] * 4
    assert MIXED.num_states == 2**7 * 65536
    assert MIXED.coordinate_names()[:5] == ["gene[x]", "gene[y]", "gene[z]", "count", "colour[0, 0]"]
    assert MIXED.dtype == np.uint16


def test_encode_undoes_decode():
    theta = np.asarray(MIXED.random(jax.random.key(0), (4, 5)))
    values = MIXED.decode(theta)
    assert values["colour"].shape == (4, 5, 2, 2)
    assert set(np.unique(values["colour"])) <= {"red", "green"}
    assert (MIXED.encode(values) == theta).all()


def test_unflatten_gives_dicts_and_plain_arrays():
    values = MIXED.unflatten(jnp.zeros(8, jnp.int32))
    assert int(values["count"]) == -2
    assert values["colour"].shape == (2, 2)
    assert as_space(tz.integers(5, 9, (2, 2))).unflatten(jnp.zeros(4)).tolist() == [[5.0, 5.0], [5.0, 5.0]]


def test_enumeration_and_index_agree():
    space = tz.Space(a=tz.integers(0, 2), b=tz.binary(2), c=tz.categorical(5))
    states = space.enumerate()
    assert states.shape == (60, 4)
    assert (space.index(states) == np.arange(60)).all()
    assert len(np.unique(states, axis=0)) == 60


def test_equal_spaces_are_equal_and_hashable():
    again = tz.Space(tz.binary(4))
    assert again == tz.Space(tz.binary(4))
    assert hash(again) == hash(tz.Space(tz.binary(4)))
    assert again != tz.Space(tz.binary(5))


@pytest.mark.parametrize("variable", [tz.binary(), tz.integers(-5, 5), tz.integers(0, 60000), tz.categorical(3)])
def test_values_are_handed_out_wide_enough_to_compute_with(variable):
    values = variable.decode(np.arange(min(variable.size, 8), dtype=np.uint8))
    assert values.dtype == np.int64
    assert values[0] == variable.low


def test_coordinates_are_named_by_their_coords():
    grid = tz.binary((2, 2), dims=("row", "column"), coords={"row": ["top", "low"]})
    space = tz.Space(on=tz.binary(2, dims="who", coords={"who": ["a", "b"]}), grid=grid, k=tz.integers(1, 3))
    expected = ["on[a]", "on[b]", "grid[top, 0]", "grid[top, 1]", "grid[low, 0]", "grid[low, 1]", "k"]
    assert space.coordinate_names() == expected


def test_random_is_uniform_and_inside():
    theta = np.asarray(MIXED.random(jax.random.key(1), (2000,)))
    assert MIXED.contains(theta).all()
    assert abs(theta[:, 0].mean() - 0.5) < 5.5 * 0.5 / np.sqrt(2000)
