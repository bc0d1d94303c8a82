"""Every public name carries an example; `make test` runs them all in the environment users have."""

import inspect

import pytest

import terrazzo as tz
from terrazzo.samplers import REGISTRY

PUBLIC = {name: value for name, value in vars(tz).items() if callable(value) and not name.startswith("_")}
FACTORIES = {name: spec.factory for name, spec in REGISTRY.items()}


@pytest.mark.parametrize("name", [*PUBLIC, *FACTORIES])
def test_it_has_an_example(name):
    assert ">>> " in (inspect.getdoc(PUBLIC.get(name) or FACTORIES[name]) or "")


def test_there_are_names():
    assert {"sample", "fit", "Space", "Target", "Result"} <= set(PUBLIC)
    assert len(FACTORIES) >= 20
