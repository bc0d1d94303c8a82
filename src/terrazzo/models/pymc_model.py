"""A PyMC model as a target: its log-density through PyTensor's JAX backend, its prior, its predictions.

Value transforms are removed from a copy of the model, so that its log-density is one of values in the user's own scale;
the variables of the space bring their own coordinates. Supports that no variable of ours has use PyMC's transform.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.backends.arviz import find_constants
from pymc.distributions import transforms
from pymc.logprob import transforms as basic_transforms
from pymc.model.transform.conditioning import remove_value_transforms

from terrazzo.errors import SpaceError, TargetError, TerrazzoError
from terrazzo.errors.user_code import described
from terrazzo.models import pytensor_jax
from terrazzo.models.base import (
    MOST_OUTSIDE,
    Support,
    all_equal,
    checked_bounds,
    discrete_variable,
    no_latent_sites,
    note_of_cut,
)
from terrazzo.results.models import Model, Observed
from terrazzo.spaces import Space, ordered, real, simplex
from terrazzo.targets.mixed import Reference
from terrazzo.targets.target import Target

LEAST_WITHIN = (
    0.05  # of the prior within bounds for which draws are repeated until they lie within: 20 times on average
)
DEPENDS = "has a support that depends on other variables"


def target_of(model: Any, bounds: Any) -> Target:
    """What `tz.from_pymc` returns."""
    if not isinstance(model, pm.Model):
        raise TargetError("model", f"must be a pymc.Model, got {type(model).__name__}", "pass the model itself")
    if not model.free_RVs:
        raise no_latent_sites("PyMC")
    try:
        return _Density(model, bounds).target()
    except TerrazzoError:
        raise
    except Exception as error:
        raise TargetError(
            "model", f"cannot be compiled by PyTensor's JAX backend: {described(error)}", "use operations it supports"
        ) from error


class _Density:
    """A model, taken apart, and its functions."""

    def __init__(self, model: Any, bounds: Any):
        self.model = model
        self.rvs = {rv.name: rv for rv in model.free_RVs}
        self.discrete = {name for name, rv in self.rvs.items() if rv.type.dtype.startswith(("int", "uint", "bool"))}
        self.ends = checked_bounds(
            bounds, self.discrete, set(self.rvs) - self.discrete, {rv.name for rv in model.observed_RVs}
        )
        self.shapes = {name: self._shape(rv) for name, rv in self.rvs.items()}
        self.constants = find_constants(model)
        self.coords = {dim: np.asarray(names) for dim, names in model.coords.items() if names is not None}
        self.cut: dict[str, tuple[int, int]] = {}
        self.space = Space(**{name: self._variable(name) for name in self.rvs})
        plain = remove_value_transforms(model)
        values = {rv.name: plain.rvs_to_values[rv] for rv in plain.free_RVs}
        self.order = tuple(values)
        self._joint = pytensor_jax.function([*values.values()], [plain.logp()])
        self._prior = pytensor_jax.function([*values.values()], [plain.logp(vars=plain.free_RVs)])

    def target(self) -> Target:
        """The target, with the prior as its reference where it can be drawn from."""
        notes = tuple(note_of_cut(name, ends) for name, ends in self.cut.items())
        about = Model("pymc", self.predict, self._observed(), notes)
        return Target(self.joint, self.space, reference=self._reference(), model=about)

    # ---- the space

    def _shape(self, rv: Any) -> tuple[int, ...]:
        """The shape of a variable; PyMC computes (and compiles) it where PyTensor has no draws of it in JAX."""
        if None not in rv.type.shape:
            return tuple(int(n) for n in rv.type.shape)
        try:
            return tuple(jax.eval_shape(pytensor_jax.draw_function([rv]), jax.random.key(0))[0].shape)
        except Exception:
            return tuple(int(n) for n in self.model.eval_rv_shapes()[rv.name])

    def _variable(self, name: str) -> Any:
        rv, shape = self.rvs[name], self.shapes[name]
        axes = self._axes(name, shape)
        if name in self.discrete:
            variable, is_cut = discrete_variable(name, self._support(rv), shape, self.ends, **axes)
            self.cut |= {name: self.ends[name]} if is_cut else {}
            return variable
        return self._real_variable(name, rv, shape, axes)

    def _axes(self, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
        """Dims and coords of a variable as the model has them."""
        dims = self.model.named_vars_to_dims.get(name)
        if not dims or len(dims) != len(shape):
            return {}
        dims = tuple(dim or f"{name}_dim_{i}" for i, dim in enumerate(dims))
        coords = {
            dim: tuple(self.model.coords[dim])
            for dim, length in zip(dims, shape, strict=True)
            if self.model.coords.get(dim) is not None and len(self.model.coords[dim]) == length
        }
        return {"dims": dims, "coords": coords}

    def _constant(self, graph: Any) -> np.ndarray | None:
        """The value of a graph that no free variable reaches; None for others."""
        graph = pt.as_tensor(graph)
        if set(pm.inputvars(graph)) or any(rv in _ancestors(graph) for rv in self.model.basic_RVs):
            return None
        return np.asarray(pytensor_jax.function([], [graph])()[0])

    def _support(self, rv: Any) -> Support:
        name, node = getattr(rv.owner.op, "name", ""), rv.owner
        if name == "bernoulli":
            return Support("binary", 0, 1)
        if name == "categorical":
            return Support("categorical", 0, self._shape(node.op.dist_params(node)[0])[-1] - 1)
        parameters = node.op.dist_params(node) if hasattr(node.op, "dist_params") else ()
        ends = {"binomial": (0, 0), "beta_binomial": (0, 0), "discrete_uniform": (0, 1)}.get(name)
        if ends is None:
            low = 1 if name == "geometric" else 0
            return Support("integers", low if name in UNBOUNDED else None, None)
        found = [self._constant(parameters[i]) for i in ends]
        if found[0] is None or found[1] is None:
            return Support("integers", None, None, DEPENDS)
        low = 0 if name != "discrete_uniform" else int(np.min(found[0]))
        return Support("integers", low, int(np.max(found[1])))

    def _real_variable(self, name: str, rv: Any, shape: tuple[int, ...], axes: Mapping[str, Any]) -> Any:
        transform = self.model.rvs_to_transforms[rv]
        if transform is None:
            return real(shape, **axes)
        if isinstance(transform, basic_transforms.LogTransform | transforms.LogExpM1):
            return real(low=0.0, shape=shape, **axes)
        if isinstance(transform, basic_transforms.LogOddsTransform):
            return real(0.0, 1.0, shape, **axes)
        if isinstance(transform, basic_transforms.CircularTransform):
            return real(-np.pi, np.pi, shape, **axes)
        if isinstance(transform, basic_transforms.SimplexTransform) and shape[-1] > 1:
            return simplex(shape[-1], shape[:-1], **axes)
        if isinstance(transform, transforms.Ordered) and shape[-1] > 1:
            return ordered(shape[-1], shape[:-1], **axes)
        if isinstance(transform, basic_transforms.IntervalTransform):
            ends = transform.args_fn(*rv.owner.inputs)
            found = [None if end is None else self._constant(end) for end in ends]
            if any(value is None and end is not None for value, end in zip(found, ends, strict=True)):
                raise SpaceError(f"variable {name!r}", DEPENDS, "sample it on a fixed support and scale it")
            low, high = (None if value is None else all_equal(value) for value in found)
            is_one = all(value is None or not np.isfinite(value).any() or end is not None
                         for value, end in zip(found, (low, high), strict=True))  # fmt: skip
            if is_one:
                return real(low=low, high=high, shape=shape, **axes)
        return real(bijection=self._bijection(name, rv, transform, shape), **axes)

    def _bijection(self, name: str, rv: Any, transform: Any, shape: tuple[int, ...]) -> "GraphBijection":
        value = self.model.rvs_to_values[rv].type("value")
        x = rv.type("x")
        inputs = rv.owner.inputs
        graphs = (transform.backward(value, *inputs), transform.log_jac_det(value, *inputs).sum())
        if any(other in _ancestors(*graphs) for other in self.model.basic_RVs):
            raise SpaceError(f"variable {name!r}", DEPENDS, "sample it on a fixed support and scale it")
        forward = pytensor_jax.function([x], [transform.forward(x, *inputs)])
        start = jax.eval_shape(forward, jax.ShapeDtypeStruct(shape, jnp.result_type(float)))[0]
        return GraphBijection(shape, tuple(start.shape), pytensor_jax.function([value], list(graphs)), forward)

    def _observed(self) -> dict[str, Observed]:
        found = {}
        for rv in self.model.observed_RVs:
            value = self.model.rvs_to_values[rv]
            values = np.asarray(value.data if hasattr(value, "data") else pytensor_jax.function([], [value])()[0])
            axes = self._axes(rv.name, values.shape)
            found[rv.name] = Observed(values, axes.get("dims"), axes.get("coords", {}))
        return found

    # ---- its functions

    def joint(self, values: dict[str, Any]) -> Any:
        """log p(free variables, data)."""
        return pytensor_jax.real_of(self._joint(*(values[name] for name in self.order))[0])

    def prior(self, values: dict[str, Any]) -> Any:
        """log p(free variables)."""
        return pytensor_jax.real_of(self._prior(*(values[name] for name in self.order))[0])

    def _reference(self) -> Reference | None:
        """The prior; None where it is improper, or PyTensor cannot draw from it in JAX, or hardly within the bounds."""
        if any(getattr(rv.owner.op, "name", "") in ("flat", "halfflat") for rv in self.model.free_RVs):
            return None
        within = self._share_within()
        if within is None or within < LEAST_WITHIN:
            return None
        try:
            raw = pytensor_jax.draw_function(self.model.free_RVs)
            draw = lambda key: self._values(raw(key))
            jax.eval_shape(draw, jax.random.key(0))
        except Exception:  # some distributions have no draws in JAX
            return None
        constant = float(np.log(within))
        return Reference(
            log_prob=lambda values: self.prior(values) - constant, draw=self._repeated(draw) if self.cut else draw
        )

    def _values(self, drawn: tuple) -> dict[str, Any]:
        return {
            name: value.astype(jnp.int32) if name in self.discrete else pytensor_jax.real_of(value)
            for name, value in zip(self.rvs, map(jnp.asarray, drawn), strict=True)
        }

    def _repeated(self, draw: Any) -> Any:
        """Draws until all cut variables lie within their bounds."""

        def is_outside(values: dict[str, Any]) -> Any:
            found = [jnp.any((values[name] < low) | (values[name] > high)) for name, (low, high) in self.cut.items()]
            return jnp.any(jnp.stack(found))

        def again(carry: tuple) -> tuple:
            key, own = jax.random.split(carry[0])
            return key, draw(own)

        return lambda key: jax.lax.while_loop(lambda c: is_outside(c[1]), again, again((key, None)))[1]

    def _share_within(self) -> float | None:
        """How much of the prior lies within the bounds; None where that depends on other variables."""
        total = 0.0
        for name, (low, high) in self.cut.items():
            rv = self.rvs[name]
            if any(other in _ancestors(rv) for other in self.model.free_RVs if other is not rv):
                return None
            grid = np.arange(low, high + 1).reshape(-1, *(1,) * rv.ndim) + np.zeros(self.shapes[name], int)
            log_probs = np.asarray(pytensor_jax.function([], [pm.logp(rv, grid)])()[0])
            shares = np.exp(log_probs).sum(axis=0)
            if 1 - shares.min() > MOST_OUTSIDE:
                warnings.warn(
                    f"{note_of_cut(name, (low, high))}, and {100 * (1 - shares.min()):.2g} % of it lies outside"
                    f"\n  -> widen bounds[{name!r}] if the data allow such values",
                    RuntimeWarning, stacklevel=6,
                )  # fmt: skip
            total += float(np.log(shares).sum())
        return float(np.exp(total))

    def predict(
        self, seed: int, draws: dict[str, np.ndarray], args: tuple, kwargs: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        """New data of each draw, by `pm.sample_posterior_predictive`.

        PyMC redraws a variable if the data or the dims that it depends on have changed since: it is told both.
        """
        if args or kwargs:
            raise TargetError("predictive", "takes no data for a PyMC model", "pm.set_data(...) on the model first")
        columns, coords = {}, dict(self.coords)
        for name, values in draws.items():
            axes = self._axes(name, values.shape[1:])
            dims = axes.get("dims") or tuple(f"{name}_dim_{i}" for i in range(values.ndim - 1))
            columns[name] = (("chain", "draw", *dims), values[None])
            coords |= {dim: coords.get(dim, np.arange(n)) for dim, n in zip(dims, values.shape[1:], strict=True)}
        used = {dim for dims, _ in columns.values() for dim in dims}
        posterior = xr.Dataset(columns, {dim: names for dim, names in coords.items() if dim in used})
        constants = {
            name: ((tuple(f"{name}_dim_{i}" for i in range(np.ndim(x)))), x) for name, x in self.constants.items()
        }
        groups: dict[str, Any] = {"posterior": posterior, "constant_data": xr.Dataset(constants)}
        trace = az.InferenceData(**groups) if hasattr(az, "InferenceData") else xr.DataTree.from_dict(groups)
        with _quiet_log(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pm.sample_posterior_predictive(
                trace, model=self.model, random_seed=seed, progressbar=False, return_inferencedata=False
            )
        return {name: np.asarray(values)[0] for name, values in found.items()}


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """PyMC logs which variables it draws."""
    log = logging.getLogger("pymc")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


UNBOUNDED = ("poisson", "geometric", "negative_binomial", "nbinom", "discrete_weibull")


class GraphBijection:
    """The bijection of a PyMC transform, for supports that no variable of ours has."""

    def __init__(self, shape: tuple[int, ...], unconstrained_shape: tuple[int, ...], backward: Any, forward: Any):
        self.shape, self.unconstrained_shape = shape, unconstrained_shape
        self._backward, self._forward = backward, forward

    def constrain(self, y: Any) -> Any:
        """The value of unconstrained coordinates."""
        return pytensor_jax.real_of(self._backward(y)[0])

    def unconstrain(self, value: Any) -> Any:
        """The unconstrained coordinates of a value."""
        return pytensor_jax.real_of(self._forward(value)[0])

    def log_jacobian(self, y: Any) -> Any:
        """log |d constrain / dy|, summed."""
        return pytensor_jax.real_of(self._backward(y)[1])


def _ancestors(*graphs: Any) -> set[Any]:
    from pytensor.graph.traversal import ancestors

    return set(ancestors(graphs))
