"""What a NumPyro model is made of: its latent sites as variables of a space, its data, and whether its prior is proper.

The model is traced, not run: supports and shapes are read from the trace. Which supports depend on latent sites is read
from the computation (a support that does is no support of a variable).
"""

from collections.abc import Mapping
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from numpyro import handlers
from numpyro.distributions import (
    CategoricalLogits,
    CategoricalProbs,
    Delta,
    ExpandedDistribution,
    ImproperUniform,
    Independent,
    MaskedDistribution,
    OrderedLogistic,
    Unit,
    biject_to,
    constraints,
)
from numpyro.primitives import Messenger

from terrazzo.errors import SpaceError, TargetError, TerrazzoError
from terrazzo.errors.user_code import described
from terrazzo.models.base import (
    Support,
    all_equal,
    checked_bounds,
    discrete_variable,
    named_dims,
    no_latent_sites,
)
from terrazzo.results.models import Observed
from terrazzo.spaces import Space, ordered, real, simplex
from terrazzo.targets.contents import digest

RUNS = "call it as you call it in NumPyro: tz.from_numpyro(model, *args, **kwargs)"
DEPENDS = "has a support that depends on other latent sites"


class Reading(NamedTuple):
    """A model, taken apart.

    Attributes:
        model: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
        space: One variable a latent site.
        discrete: Names of the discrete sites.
        observed: The data.
        cut: Bounds that leave out values of a site, by name.
        checked: Sites whose values may lie outside their support.
        scanned: Observed sites inside a scan.
        is_prior_proper: Whether the prior is a distribution that can be drawn from.
    """

    model: Any
    args: tuple
    kwargs: dict[str, Any]
    space: Space
    discrete: frozenset[str]
    observed: Mapping[str, Observed]
    cut: Mapping[str, tuple[int, int]]
    checked: frozenset[str]
    scanned: tuple[str, ...]
    is_prior_proper: bool

    @property
    def names(self) -> tuple[str, ...]:
        return self.space.names


class TransformBijection:
    """The bijection of a NumPyro constraint, for supports that no variable of ours has. Equal by its contents."""

    def __init__(self, constraint: Any, shape: tuple[int, ...]):
        self.transform, self.shape = biject_to(constraint), shape
        self.unconstrained_shape = tuple(self.transform.inverse_shape(shape))
        leaves, tree = jax.tree.flatten(constraint)
        self._key = digest(*leaves, tree, shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransformBijection) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def constrain(self, y: Any) -> Any:
        """The value of unconstrained coordinates."""
        with jax.numpy_dtype_promotion("standard"):
            return jnp.asarray(self.transform(y), jnp.result_type(float))

    def unconstrain(self, value: Any) -> Any:
        """The unconstrained coordinates of a value."""
        with jax.numpy_dtype_promotion("standard"):
            return jnp.asarray(self.transform._inverse(value), jnp.result_type(float))

    def log_jacobian(self, y: Any) -> Any:
        """log |d constrain / dy|, summed."""
        with jax.numpy_dtype_promotion("standard"):
            each = self.transform.log_abs_det_jacobian(y, self.transform(y))
        return jnp.sum(jnp.asarray(each, jnp.result_type(float)))


class _Watch(Messenger):
    """Refuses what makes a density random, and gives values to sites that cannot be drawn."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "prng_key":
            raise TargetError(
                "model", "draws random numbers of its own (numpyro.prng_key)",
                "make them sites, or pass them as arguments",
            )  # fmt: skip
        if msg["type"] == "plate" and msg["args"][1] is not None and msg["args"][1] < msg["args"][0]:
            taken = f"takes {msg['args'][1]} of {msg['args'][0]} at random"
            raise TargetError(f"plate {msg['name']!r}", f"{taken}: the density is random", "leave subsample_size out")
        if msg["type"] == "sample" and msg["value"] is None and isinstance(_innermost(msg["fn"]), ImproperUniform):
            msg["value"] = msg["fn"].support.feasible_like(jnp.zeros(msg["fn"].shape()))


def run(model: Any, args: tuple, kwargs: dict[str, Any], key: Any = None) -> dict[str, Any]:
    """The trace of a model; typed errors for whatever it raises."""
    key = jax.random.key(0) if key is None else key
    try:
        with jax.numpy_dtype_promotion("standard"):
            return handlers.trace(handlers.seed(model, key)).get_trace(*args, **kwargs)
    except TerrazzoError:
        raise
    except Exception as error:
        raise TargetError("model", f"raises {described(error)}", RUNS) from error


def _abstract(model: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The trace of a model with shapes for values: nothing is computed."""
    kept: dict[str, Any] = {}

    def sites(key: Any) -> dict[str, Any]:
        kept.update(run(model, args, kwargs, key))
        return {name: jnp.asarray(site["value"]) for name, site in kept.items() if site["type"] == "sample"}

    shapes = jax.eval_shape(sites, jax.random.key(0))
    return {name: {**site, "value": shapes[name]} if name in shapes else site for name, site in kept.items()}


def latent_sites(trace: Mapping[str, Any]) -> dict[str, Any]:
    """The sites to sample: unobserved, and not a constant by another name."""
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"] and not isinstance(_innermost(site["fn"]), Delta)
    }


def read(model: Any, args: tuple, kwargs: dict[str, Any], bounds: Any) -> Reading:
    """Takes a model apart; everything that cannot be sampled is a typed error here."""
    _check_call(model, args, kwargs)
    trace = _abstract(_Watch(model), args, kwargs)
    latent, data = latent_sites(trace), _data_sites(trace)
    _check_sites(trace, latent)
    discrete = frozenset(name for name, site in latent.items() if site["fn"].support.is_discrete)
    ends = checked_bounds(bounds, discrete, set(latent) - discrete, data)
    supports, observed, dependent = _found(model, args, kwargs, latent)
    variables: dict[str, Any] = {}
    cut: dict[str, tuple[int, int]] = {}
    for name, site in latent.items():
        axes = {"dims": _dims(site)}
        if name in discrete:
            support = _discrete_support(name, site, supports[name], is_dependent=name in dependent)
            variables[name], is_cut = discrete_variable(name, support, jnp.shape(site["value"]), ends, **axes)
            cut |= {name: ends[name]} if is_cut else {}
        else:
            variables[name] = _real_variable(name, site, supports[name], is_dependent=name in dependent, **axes)
    is_array = {name for name in discrete if name not in dependent and _has_array_ends(supports[name])}
    return Reading(
        model=model, args=args, kwargs=kwargs, space=Space(**variables), discrete=discrete, cut=cut,
        observed={name: Observed(observed[name], _dims(site)) for name, site in data.items()},
        checked=frozenset(dependent | is_array),
        scanned=tuple(name for name, site in data.items() if _is_scanned(site)),
        is_prior_proper=not any(map(_is_improper, latent.values())) and not any(_is_scanned(latent[n]) for n in cut),
    )  # fmt: skip


# ---- checks


def _check_call(model: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    if not callable(model):
        raise TargetError("model", f"must be a NumPyro model, got {type(model).__name__}", "pass the function itself")
    try:
        signature(model).bind(*args, **kwargs)
    except TypeError as error:
        raise TargetError("model", f"does not take these arguments: {error}", RUNS) from None
    except ValueError:
        return  # it has no signature that Python can read


def _check_sites(trace: Mapping[str, Any], latent: Mapping[str, Any]) -> None:
    for name, site in trace.items():
        if site["type"] == "param":
            raise TargetError(f"site {name!r}", "is a parameter without a prior", "make it a sample with a prior")
    if not latent:
        raise no_latent_sites("NumPyro")


def _found(model: Any, args: tuple, kwargs: dict[str, Any], latent: Mapping[str, Any]) -> tuple[dict, dict, set[str]]:
    """The supports of all sites and the data, as numbers, and the sites whose supports are computed from latent sites.

    These are read from the computation: what its inputs, the latent sites, reach.
    """
    names: list[str] = []
    trees: dict[str, Any] = {}
    given: dict[str, Any] = {}

    def outputs(values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        trace = run(handlers.substitute(model, data=values), args, kwargs)
        names.clear()
        leaves = []
        for name, site in trace.items():
            if site["type"] == "sample" and not isinstance(site["fn"], Unit):
                found, trees[name] = jax.tree.flatten(site["fn"].support)
                names.extend([name] * len(found))
                leaves += [jnp.asarray(leaf) for leaf in found]
        data = {name: site["value"] for name, site in _data_sites(trace).items()}
        given.update({name: x for name, x in data.items() if not isinstance(x, jax.core.Tracer)})
        return leaves, data

    values = {name: jnp.zeros(site["value"].shape, site["value"].dtype) for name, site in latent.items()}
    jaxpr = jax.make_jaxpr(outputs)(values).jaxpr
    reached = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in reached for atom in equation.invars):
            reached |= set(equation.outvars)
    is_reached = [not isinstance(atom, Literal) and atom in reached for atom in jaxpr.outvars[: len(names)]]
    dependent = {name for name, reaches in zip(names, is_reached, strict=True) if reaches}
    leaves, data = jax.jit(outputs)(values)
    mine = {n: [np.asarray(x) for name, x in zip(names, leaves, strict=True) if name == n] for n in trees}
    supports = {name: jax.tree.unflatten(tree, mine[name]) for name, tree in trees.items()}
    return supports, {name: np.asarray(given.get(name, x)) for name, x in data.items()}, dependent


# ---- sites


def _innermost(fn: Any) -> Any:
    while isinstance(fn, MaskedDistribution | ExpandedDistribution | Independent):
        fn = fn.base_dist
    return fn


def has_mask(fn: Any) -> bool:
    return isinstance(fn, MaskedDistribution)


def _is_scanned(site: Mapping[str, Any]) -> bool:
    return "_scan_current_index" in site["infer"]


def _is_improper(site: Mapping[str, Any]) -> bool:
    """Whether a site's density is not that of the distribution it is drawn from."""
    return has_mask(site["fn"]) or site["scale"] is not None or isinstance(_innermost(site["fn"]), ImproperUniform)


def _data_sites(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and site["is_observed"] and not isinstance(site["fn"], Unit)
    }


def _dims(site: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The plates of a site as names of its axes."""
    shape = jnp.shape(site["value"])
    num_batch = len(shape) - len(site["fn"].event_shape)
    known = {}
    for frame in site["cond_indep_stack"]:
        axis = num_batch + frame.dim
        if 0 <= axis < num_batch and shape[axis] == frame.size:
            known[axis] = frame.name
    return named_dims(site["name"], len(shape), known)


def _base_constraint(constraint: Any) -> Any:
    return getattr(constraint, "base_constraint", constraint)


def _has_array_ends(support: Any) -> bool:
    """Whether elements of a discrete site have different supports: the variable has the widest of them."""
    return any(all_equal(leaf) is None for leaf in jax.tree.leaves(support))


def _discrete_support(name: str, site: Mapping[str, Any], full: Any, *, is_dependent: bool) -> Support:
    support, fn = _base_constraint(full), _innermost(site["fn"])
    if isinstance(support, type(constraints.boolean)):
        return Support("binary", 0, 1)
    is_categorical = isinstance(fn, CategoricalProbs | CategoricalLogits) and not isinstance(fn, OrderedLogistic)
    kind = "categorical" if is_categorical else "integers"
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if full.event_dim and not hasattr(full, "base_constraint"):
        raise SpaceError(
            f"site {name!r}", f"has a support of whole vectors ({type(fn).__name__})", "write it as single counts"
        )
    if low is None:
        raise SpaceError(f"site {name!r}", f"has the support {support!r}", "use a distribution over integers")
    if is_dependent:
        return Support(kind, None, None, DEPENDS)
    bottom = int(np.min(np.asarray(low)))
    return Support(kind, bottom, None) if high is None else Support(kind, bottom, int(np.max(np.asarray(high))))


def _real_variable(name: str, site: Mapping[str, Any], full: Any, *, is_dependent: bool, dims: Any) -> Any:
    """The variable of a real site: one of ours where there is one, else with NumPyro's transform."""
    if is_dependent:
        raise SpaceError(
            f"site {name!r}",
            DEPENDS,
            "sample it on a fixed support and scale it, e.g. dist.Uniform(0, 1) times a bound",
        )
    shape, support = tuple(jnp.shape(site["value"])), _base_constraint(full)
    if isinstance(support, type(constraints.real)):
        return real(shape, dims=dims)
    if isinstance(support, type(constraints.simplex)) and shape[-1] > 1:
        return simplex(shape[-1], shape[:-1], dims=dims)
    if type(support) is type(constraints.ordered_vector) and shape[-1] > 1:
        return ordered(shape[-1], shape[:-1], dims=dims)
    ends = {key: getattr(support, key, None) for key in ("lower_bound", "upper_bound")}
    numbers = {key: all_equal(end) for key, end in ends.items() if end is not None}
    if not support.event_dim and numbers and None not in numbers.values():
        return real(low=numbers.get("lower_bound"), high=numbers.get("upper_bound"), shape=shape, dims=dims)
    try:
        return real(bijection=TransformBijection(full, shape), dims=dims)
    except (NotImplementedError, ValueError, TypeError) as error:
        raise SpaceError(
            f"site {name!r}", f"has the support {full!r}, to which NumPyro has no bijection", "write it by other sites"
        ) from error
