"""The one loop: a kernel over chains, in chunks of about a second (`runtime.pacing`)."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from terrazzo.engine import kernels
from terrazzo.runtime import devices
from terrazzo.runtime.pacing import Chunk, in_chunks
from terrazzo.samplers.parts.base import SamplerSpec, Tuning
from terrazzo.spaces import Configuration
from terrazzo.targets.mixed import non_finite_error as mixed_error
from terrazzo.targets.probing import non_finite_error

BUFFER_BYTES = 2**25


class Draws(NamedTuple):
    """Kept draws of a chunk.

    Attributes:
        states: The states of all chains after it.
        rows: Arrays by name, (draw, chain, ...).
        info: The mean of every field of the kernel's `Info` over the steps and chains of the chunk, by name.
    """

    states: Any
    rows: dict[str, np.ndarray]
    info: dict[str, np.ndarray]


class Chains(NamedTuple):
    """A kernel and the chains that it runs on.

    Attributes:
        mesh: The devices of the chains.
        spec: The sampler.
        problem: What it is built from.
        length: Kept draws that one chunk can hold.
        parameters: Its tuned parameters.
        keep_latent: Whether latent draws are kept.
        is_brief: Whether to compile with less effort: for loops that run not much longer than they compile.
        first_chain: The number of the first of the chains, where others run elsewhere.
        num_chains: How many there are in all, where others run elsewhere; None: those of the mesh.
        is_one_program: Whether warm-up and draws are compiled as one: for kernels that compile longer than they run.
    """

    mesh: Mesh
    spec: SamplerSpec
    problem: kernels.Problem
    length: int
    parameters: dict[str, Any] = {}  # noqa: RUF012 (never written to)
    keep_latent: bool = False
    is_brief: bool = False
    first_chain: int = 0
    num_chains: int | None = None
    is_one_program: bool = False

    @property
    def layout(self) -> Mesh:
        """The devices: a chain that can be distributed takes those that are free, too."""
        distribution = self.spec.distribution
        if distribution is None:
            return self.mesh
        num_parts = distribution.num_parts(self.problem, self.parameters)
        return devices.widened(self.mesh, num_parts, distribution.axis)

    def on_devices(self) -> "Chains":
        """These chains with what a kernel was built from on its devices, where it is distributed with the sites."""
        distribution = self.spec.distribution
        if distribution is None or distribution.axis != devices.SITES:
            return self
        if distribution.num_parts(self.problem, self.parameters) == 1:
            return self
        return self._replace(problem=devices.spread(self.layout, self.problem))

    def place(self, states: Any) -> Any:
        """States on their devices."""
        distribution = self.spec.distribution
        return devices.distribute(self.layout, states, None if distribution is None else distribution.axes)

    def start(self, key: Array, theta: Any) -> Any:
        """The states of all chains at the configurations `theta`, (chain, dim)."""
        is_mixed = isinstance(theta, Configuration)
        codes = jnp.asarray(theta.theta if is_mixed else theta, jnp.int32)
        start = Configuration(codes, jnp.asarray(theta.reals, jnp.result_type(float))) if is_mixed else codes
        distribution, layout, problem = self.spec.distribution, self.layout, self.on_devices().problem
        is_cut = distribution is not None and distribution.axis == devices.SITES
        placed = devices.distribute(layout, start, distribution.axes.position if distribution and is_cut else None)
        return kernels.start(layout, self.spec, problem, self.parameters, key, placed)

    def draw(self, key: Array, states: Any, first: int, count: int, thin: int) -> tuple[Any, dict, dict]:
        """One call of the compiled loop, unread."""
        is_tuned_too = self.is_one_program and self.spec.tuning is not None
        tuning_state = self._tuning.init() if is_tuned_too else None
        return self._call(self.length, key, states, tuning_state, first * thin, count, thin)[:3]

    def tuned(self, key: Array, states: Any, tuning_state: Any, first: int, count: int) -> tuple[Any, dict, Any]:
        """`count` steps of warm-up from step `first` on, unread.

        Returns the states, the sums over the kernel's `Info`, and the tuning state (None: nothing is tuned).
        """
        is_apart = tuning_state is not None and not self.is_one_program
        out = self._call(1 if is_apart else self.length, key, states, tuning_state, first, 1, count, is_tuning=True)
        return out[0], out[2], out[3]

    @property
    def _tuning(self) -> Tuning:
        assert self.spec.tuning is not None
        return self.spec.tuning(self.problem.target, **self.problem.options)

    def _call(
        self, length: int, key: Array, states: Any, tuning_state: Any, first: int, count: int, thin: int, *,
        is_tuning: bool = False,
    ) -> tuple[Any, dict, dict, Any]:  # fmt: skip
        parameters: Any = self.parameters
        flag: Any = None
        if tuning_state is not None:
            flag = jnp.asarray(is_tuning) if self.is_one_program else True
            if is_tuning:  # of the shapes of those that are drawn with
                parameters = self._tuning.final(self._tuning.init())
            parameters, tuning_state = devices.replicate(self.layout, (parameters, tuning_state))
        run = kernels.draw.lightly_optimised if self.is_brief else kernels.draw
        return run(
            self.layout, self.spec, self.on_devices().problem, length, self.keep_latent, parameters, key, _int(first),
            _int(count), _int(thin), states, _int(self.first_chain), tuning_state, flag, self.num_chains,
        )  # fmt: skip

    def of_part(self, part: range, num_chains: int) -> "Chains":
        """The same kernel on some of the chains of a run, with devices for as many."""
        mesh, problem = devices.make_mesh(len(part)), self.problem
        if mesh != self.mesh:
            problem = problem._replace(transport=placed(mesh, problem.transport))
        total = None if len(part) == num_chains else num_chains
        return self._replace(mesh=mesh, problem=problem, first_chain=part.start, num_chains=total).on_devices()


def placed(mesh: Mesh, transport: Any) -> Any:
    """The transport on every device of a mesh: training may have left it on one."""
    arrays, static = eqx.partition(transport, eqx.is_array)
    return eqx.combine(devices.replicate(mesh, arrays), static)


def draws(
    chains: Chains, key: Array, states: Any, count: int, *, first: int = 0, thin: int = 1, **pace: Any
) -> Iterator[Chunk]:
    """`count` kept draws of all chains from number `first` on, `thin` steps each, chunk by chunk.

    A chain whose log-probability became NaN or +inf is an error that names its configuration. The options of `pace`
    are those of `in_chunks`.
    """
    carried = states

    def advance(done: int, size: int) -> Draws:
        nonlocal carried
        carried, out, info = chains.draw(key, carried, first + done, size, thin)
        check_states(chains.problem.target, carried)
        rows = {name: np.asarray(x)[:size].copy() for name, x in out.items()}  # sliced on the host: nothing compiles
        means = {name: np.asarray(x, float).mean(axis=0) / (size * thin) for name, x in info.items()}
        return Draws(carried, rows, means)

    return in_chunks(advance, count, longest=chains.length, **pace)


def tune(chains: Chains, tuning: Tuning | None, key: Array, states: Any, count: int) -> Iterator[Chunk]:
    """`count` steps in which the parameters are tuned over the pooled chains.

    Each chunk has the states, the parameters as they would be frozen now, and the mean acceptance of the chunk.
    """
    carried = (states, None if tuning is None else devices.replicate(chains.layout, tuning.init()))

    def advance(done: int, size: int) -> tuple[Any, dict[str, Any], float]:
        nonlocal carried
        states, info, tuning_state = chains.tuned(key, *carried, done, size)
        check_states(chains.problem.target, states)
        carried = (states, tuning_state)
        rate = float(np.asarray(info["acceptance_rate"]).mean() / size)
        return states, {} if tuning is None else tuning.final(tuning_state), rate

    return in_chunks(advance, count)


def joined(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Rows of several chunks, (draw, chain, ...), as arrays (chain, draw, ...)."""
    return {name: np.moveaxis(np.concatenate([part[name] for part in rows]), 0, 1) for name in rows[0]}


def check_states(target: Any, states: Any) -> None:
    """Raises a `TargetError` with the configuration of a chain whose log-probability is NaN or +inf."""
    log_prob = np.asarray(states.log_prob)
    bad = np.isnan(log_prob) | (log_prob == np.inf)
    if bad.any() and target.space.num_reals:
        k = int(bad.argmax())
        raise mixed_error(target, np.asarray(states.position)[k], np.asarray(states.reals)[k])
    if bad.any():
        raise non_finite_error(target, np.asarray(states.position)[bad.argmax()])


def _int(value: int) -> Array:
    """As int32; the number of a step begins again at -2^31 after 2^31 - 1."""
    return jnp.asarray(np.asarray(value).astype(np.int32))


def buffer_length(num_chains: int, num_dims: int, itemsize: int, draws: int, keep_latent: bool) -> int:
    """How many kept draws one chunk can hold."""
    per_draw = num_chains * (num_dims * (itemsize + (8 if keep_latent else 0)) + 16)
    return max(1, min(draws, BUFFER_BYTES // per_draw))
