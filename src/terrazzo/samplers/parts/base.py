"""What a sampler is: a `blackjax.SamplingAlgorithm` whose position is theta, and a line in the registry.

A *factory* is called with a target and parameters, and returns `SamplingAlgorithm(init, step)`:

- `init(position, rng_key) -> state`: the state has at least `.position` (theta, int32[d]) and `.log_prob`;
- `step(rng_key, state) -> (state, info)`: the info has at least the fields of `Info`.

Tuned parameters are plain keyword arguments of the factory (they may be traced arrays), so a frozen sampler is
the factory called with frozen numbers. How to find good numbers is a `Tuning`: pure functions that the warm-up of
`inference.sample` runs over the pooled chains and then throws away.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.base import SamplingAlgorithm as SamplingAlgorithm
from jaxtyping import Array, Bool, Float, Int

from terrazzo.diagnostics import LogZ
from terrazzo.errors import OptionError
from terrazzo.runtime.devices import REPLICAS
from terrazzo.targets.target import Target
from terrazzo.verdict.checks import Check


class State(NamedTuple):
    """The least a sampler carries from step to step."""

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]


class Info(NamedTuple):
    """What a person wants to plot about one step.

    Attributes:
        acceptance_rate: The acceptance probability of the step (1 for rejection-free kernels).
        is_accepted: Whether the state moved by an accepted proposal.
        num_evaluations: Evaluations of the target's log-probability this step needed (a gradient counts as one more).
        details: What else the kernel reports, arrays by name; None if nothing.
    """

    acceptance_rate: Float[Array, ""]
    is_accepted: Bool[Array, ""]
    num_evaluations: Int[Array, ""]
    details: Any = None


class Tuning(NamedTuple):
    """How warm-up finds the tuned parameters of a sampler, from all chains pooled.

    Attributes:
        init: `() -> tuning_state`.
        parameters: `tuning_state -> dict` of factory keyword arguments to use in the next warm-up step.
        observe: `(state, info) -> pytree`: what one chain reports after a step (kept small: it is gathered).
        update: `(tuning_state, observations) -> tuning_state`, observations with a leading chain axis.
        final: `tuning_state -> dict`: the frozen parameters.
    """

    init: Callable[[], Any]
    parameters: Callable[[Any], dict[str, Any]]
    observe: Callable[[Any, Any], Any]
    update: Callable[[Any, Any], Any]
    final: Callable[[Any], dict[str, Any]]


class Distribution(NamedTuple):
    """How the state of one chain is distributed over devices, for a kernel that can be.

    Attributes:
        num_parts: `(problem, parameters) -> int`: how many parts the state has; each device gets equally many.
        axes: A state whose fields say how they are distributed.
        has_position: `state -> bool`: whether this device holds the chain's configuration; elsewhere `position` is 0.
        axis: The axis of the mesh. Replicas are distributed by the kernel itself; sites by the compiler, to which the
            kernel looks as if there were one device.
    """

    num_parts: Callable[[Any, Mapping[str, Any]], int]
    axes: Any
    has_position: Callable[[Any], Any] | None = None
    axis: str = REPLICAS


@dataclass(frozen=True)
class SamplerSpec:
    """A sampler of the registry. Calling it binds options: `tz.samplers.gibbs(num_updates=4)`.

    Attributes:
        name: The name used in `tz.sample(..., sampler=name)`.
        factory: `factory(target, **parameters)`, or `factory(target, transport, **parameters)` if it needs one.
        summary: One line for `terrazzo samplers`.
        reference: Author (year).
        needs: What it needs of the target: any of "transport", "gradient", "binary", "ordered", "pairwise", "reals".
        tuning: `tuning(target, **options) -> Tuning`, or None if there is nothing to tune.
        check: `check(target) -> None`: raises `UnsupportedError` early if the method does not apply.
        prepare: `prepare(target, **options) -> options`: finds on the host what the factory cannot find inside
            compiled code (a colouring, say). Called once, with the concrete target and the user's options.
        record: `record(states) -> dict` of arrays that are kept with every draw, beside theta and log pi.
        has_latent: Whether its states hold a latent z, which `keep_latent=True` keeps.
        program: For a method that is not a Markov kernel: `program(key, target, chains, draws, **options) -> Drawn`.
            The factory then only names the options.
        distribution: How one chain is distributed over devices, where there are fewer chains than devices; or None.
    """

    name: str
    factory: Callable[..., Any]
    summary: str
    reference: str
    needs: frozenset[str] = frozenset()
    tuning: Callable[..., Tuning] | None = None
    check: Callable[[Target], None] | None = None
    prepare: Callable[..., dict[str, Any]] | None = None
    record: Callable[[Any], dict[str, Any]] | None = None
    has_latent: bool = False
    program: Callable[..., "Drawn"] | None = None
    distribution: Distribution | None = None

    def __call__(self, **options: Any) -> "BoundSampler":
        """This sampler with options; those of a run (`exploration`, `keep`, `transport`, ...) too.

        >>> import terrazzo as tz
        >>> tz.samplers.gibbs(num_updates=4)
        samplers.gibbs(num_updates=4)
        """
        run = {name: options.pop(name) for name in self.run_options if name in options}
        known = self.own_options
        for name in options:
            if name not in known:
                allowed = ", ".join((*known, *self.run_options))
                raise OptionError(name, f"is not an option of {self.name!r}", f"one of {allowed}")
        return BoundSampler(self, dict(options), **run)

    @property
    def own_options(self) -> tuple[str, ...]:
        """The keyword arguments of the factory."""
        parameters = inspect.signature(self.factory).parameters.values()
        keywords = (p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)
        return tuple(name for name in keywords if not name.endswith("_options"))  # bound to the inner kernel itself

    @property
    def run_options(self) -> tuple[str, ...]:
        """The options that belong to a run with this sampler rather than to its kernel."""
        if self.program is not None:
            return ()
        learned = ("transport", "training") if "transport" in self.needs else ()
        return ("exploration", "keep", *learned, *(("keep_latent",) if self.has_latent else ()))

    def __repr__(self) -> str:
        return f"samplers.{self.name}"


@dataclass(frozen=True)
class BoundSampler:
    """A sampler of the registry with its options.

    Attributes:
        spec: The registry's entry.
        options: Keyword arguments of its factory; an option given here is not tuned.
        exploration: Whether to explore by tempering first, or how (`tz.Exploration`); None leaves it to the sampler.
        transport: A recipe such as `tz.autoregressive(width=128)`, its name, or a transport.
        training: How to train it (`tz.Training`); False uses it as it is.
        keep_latent: Whether to keep the latent draws.
        keep: A function of a configuration: its values are kept in place of the configurations, for these that are too
            large to keep. It returns an array, or arrays by name.
    """

    spec: SamplerSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    exploration: Any = None
    transport: Any = None
    training: Any = None
    keep_latent: bool = False
    keep: Any = None

    def __repr__(self) -> str:
        run = {name: getattr(self, name) for name in self.spec.run_options}
        given = {**self.options, **{name: value for name, value in run.items() if value not in (None, False)}}
        return f"samplers.{self.spec.name}({', '.join(f'{k}={v!r}' for k, v in given.items())})"


class Drawn(NamedTuple):
    """What a program hands over.

    Attributes:
        theta: Draws, (chain, draw, dim).
        log_prob: Their log pi, (chain, draw).
        evidence: log Z, or None.
        log_weights: Importance weights of the draws, (chain, draw), or None if they are equal.
        notes: What else is worth keeping, by name (anything JSON can hold).
        checks: What is known about the draws beyond themselves.
    """

    theta: np.ndarray
    log_prob: np.ndarray
    evidence: LogZ | None
    log_weights: np.ndarray | None
    notes: dict[str, Any]
    checks: tuple[Check, ...] = ()


def starts_plainly(algorithm: SamplingAlgorithm, position: Array, rng_key: Any) -> bool:
    """Whether the sampler's state is theta and log pi alone: where these are known, it starts without an evaluation."""
    return isinstance(jax.eval_shape(algorithm.init, position, rng_key), State)


def as_float(value: Any) -> Array:
    """A scalar of the default float type."""
    return jnp.asarray(value, jnp.result_type(float))


def select(condition: Array, if_true: Any, if_false: Any) -> Any:
    """`jnp.where` over two pytrees of the same structure."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
