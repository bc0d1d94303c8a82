"""What is said about a function names what was found, and the line that made a term dense."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from structured_models import MODELS
from terrazzo.errors import MissingPackageError
from terrazzo.targets import structure
from terrazzo.targets.structure.picture import site_places


def test_a_lattice_is_explained():
    log_prob, sizes, _ = MODELS["torus"]
    found = structure.read(log_prob, sizes).explain()
    assert (found.num_sites, found.arity, found.num_colours, found.num_components) == (16, 2, 2, 1)
    assert "cluster moves (Potts form)" in found.opens
    assert found.sweep_evaluations < 4 < found.plain_evaluations
    assert found.dense == ()
    assert "on at most 2 sites" in str(found)


def test_the_line_that_makes_a_term_dense_is_named():
    def mixed(theta):
        s = 2.0 * theta.astype(float) - 1.0
        near = (s[1:] * s[:-1]).sum()
        total = jnp.cos(s.sum())  # this line
        return near + total

    found = structure.read(mixed, np.full(12, 2)).explain()
    assert len(found.dense) == 1
    assert found.dense[0].arity == 12
    with open(__file__) as source:
        number = next(i for i, line in enumerate(source, 1) if line.rstrip().endswith("# this line"))
    assert f"test_structure_explain.py:{number}" in str(found)


def test_the_line_is_the_users_through_a_target():
    def log_prob(theta):
        s = 2.0 * theta.astype(float) - 1.0
        return jnp.cos(jnp.asarray(np.arange(12.0)) @ s)  # that line

    with open(__file__) as source:
        number = next(i for i, line in enumerate(source, 1) if line.rstrip().endswith("# that line"))
    assert f"test_structure_explain.py:{number}" in str(tz.explain(log_prob, tz.binary(12)))


@pytest.mark.parametrize("name", ["torus", "network", "glass", "nothing_but_one"])
def test_the_graph_is_drawn(name, tmp_path):
    pytest.importorskip("matplotlib")
    log_prob, sizes, _ = MODELS[name]
    figure = structure.read(log_prob, sizes).explain().plot()
    figure.savefig(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").stat().st_size > 5000
    larger = structure.read(lambda t: (t[:50] * t[1:51] + t[52:102] * t[53:103]).sum().astype(float), np.full(103, 2))
    assert np.isfinite(site_places(larger.graph)).all()


def test_drawing_without_matplotlib_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match="matplotlib"):
        structure.read(MODELS["torus"][0], np.full(16, 2)).explain().plot()


def test_independent_parts_are_counted():
    found = structure.read(lambda t: (t[0] * t[1] + t[2]).astype(float), np.full(4, 2))
    assert found.explain().num_components == 3


def test_everything_works_in_single_precision():
    with jax.enable_x64(False):
        sizes = np.full(6, 3)
        found = structure.read(lambda t: 0.8 * (t[1:] == t[:-1]).sum().astype(jnp.float32), sizes)
        assert found.colour_logits()[0].logits(jnp.zeros(6, jnp.int32)).dtype == jnp.float32
        np.testing.assert_allclose(found.exact().log_z, np.log(3 * (2 + np.exp(0.8)) ** 5), rtol=1e-6)
