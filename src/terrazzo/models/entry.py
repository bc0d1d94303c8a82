"""`from_numpyro` and `from_pymc`: a model of another library as a `Target`. Neither library is needed until then."""

import importlib.util
from typing import Any

from terrazzo.errors import MissingPackageError
from terrazzo.targets.target import Target


def from_numpyro(model: Any, *args: Any, bounds: Any = None, **kwargs: Any) -> Target:
    """The posterior of a NumPyro model, as a `Target` with the model's sites as named variables.

    Discrete sites get their values from their supports, real sites are moved in unconstrained coordinates, plates are
    dims. The prior is the target's `reference`. `result.predictive()` draws new data through the model.

    A count without an end needs bounds. They cut the prior there: the posterior is that of the model given that the
    site lies within them. The reference is cut and normalised site by site. More than 1 % of the prior outside gives
    a warning.

    Args:
        model: A NumPyro model: a function with `numpyro.sample` sites.
        *args: Its arguments, data included.
        bounds: The least and the largest value of discrete sites, by name: `{"k": (0, 50)}`.
        **kwargs: Its keyword arguments.

    Returns:
        A `Target`. `tz.sample(tz.from_numpyro(model, data), seed=0)` is a whole program.

    Raises:
        MissingPackageError: NumPyro is not installed (`pip install 'terrazzo[numpyro]'`).
        TargetError: The model cannot be used: it raises, has no latent sites, is random beyond its sites.
        SpaceError: A site has a support that no variable has.
        OptionError: `bounds` are no bounds of the model's discrete sites.

    >>> import numpyro, numpyro.distributions as dist, terrazzo as tz
    >>> def model(y):
    ...     on = numpyro.sample("on", dist.Bernoulli(0.5))
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    ...     numpyro.sample("y", dist.Normal(mu + 2.0 * on, 1.0), obs=y)
    >>> tz.from_numpyro(model, 1.5).space.names
    ('on', 'mu')
    """
    _check_installed("numpyro")
    from terrazzo.models import numpyro_model  # late: it imports NumPyro

    return numpyro_model.target_of(model, args, kwargs, bounds)


def from_pymc(model: Any, bounds: Any = None) -> Target:
    """The posterior of a PyMC model, as a `Target` with the model's free variables.

    The log-density is compiled by PyTensor's JAX backend. Dims and coords are the model's own. The prior is the
    target's `reference` where PyTensor can draw from it in JAX. `result.predictive()` draws new data by
    `pm.sample_posterior_predictive`.

    Args:
        model: A `pymc.Model`.
        bounds: The least and the largest value of discrete variables, by name, as in `from_numpyro`.

    Returns:
        A `Target`.

    Raises:
        MissingPackageError: PyMC is not installed (`pip install 'terrazzo[pymc]'`).
        TargetError: The model cannot be used.
        SpaceError: A variable has a support that no variable of ours has.
        OptionError: `bounds` are no bounds of the model's discrete variables.

    >>> import pymc as pm, terrazzo as tz
    >>> with pm.Model() as model:
    ...     z = pm.Bernoulli("z", 0.3)
    ...     _ = pm.Normal("y", 2.0 * z, 1.0, observed=1.5)
    >>> tz.from_pymc(model).space.names
    ('z',)
    """
    _check_installed("pymc")
    from terrazzo.models import pymc_model  # late: it imports PyMC

    return pymc_model.target_of(model, bounds)


def _check_installed(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(package, extra=package)
