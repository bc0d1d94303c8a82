"""A plan: what runs after warm-up, what warm-up leaves for the verdict, and both to and from a file."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from terrazzo.auto.decisions import Choice, thin_of
from terrazzo.auto.exploration import Explored, reference_for
from terrazzo.auto.hunt import OtherStarts
from terrazzo.auto.policy import Policy
from terrazzo.diagnostics import LogZ
from terrazzo.engine.kernels import Problem
from terrazzo.engine.loop import Chains
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.parts.paths import UNIFORM
from terrazzo.targets.target import Target
from terrazzo.transports import AbstractTransport


class Weighed(NamedTuple):
    """The transport's own draws and weights, and the weights of the tempered draws.

    Attributes:
        theta: Draws of the transport that are possible, (draw, dim).
        own_log_weights: Weights of all its draws, (draw,).
        tempered_log_weights: Weights of tempered draws that training has not seen (thinned), (ladder, draw).
        evidence: log Z by importance sampling.
        acceptance: The acceptance an independence move would have in stationarity.
    """

    theta: np.ndarray
    own_log_weights: np.ndarray
    tempered_log_weights: np.ndarray
    evidence: LogZ
    acceptance: float


class Plan(NamedTuple):
    """What runs after warm-up, and what warm-up leaves for the verdict.

    Attributes:
        sampler: The sampler's name.
        options: Keyword arguments of its factory.
        uses_transport: Whether the sampler moves through the transport.
        starts: Where the chains start, (chain, dim).
        is_from_transport: Which chains start from the transport.
        description: What the result keeps of all this.
        transport: The learned transport, or None.
        explored: The tempered draws; None if there was no exploration.
        weighed: What the transport says of itself and of them, or None.
        history: Training curves.
        thin: Rounds a kept draw, if the trial says so.
        is_brief: Whether the loops are compiled with less effort.
        rounds: Rounds that one step of the sampler plays: the user's steps are rounds.
        step_seconds: Seconds of one step of all chains, if the trial timed it; else infinite.
        promise: Effective draws a second that the trial saw, or None.
        num_tied: How many sites must change together, if single sites are cut off; else 0.
        has_modes: Whether draws of modes that tempering did not find were learned from.
        others: Chains of the sampler that began at hunted configurations, once they have run.
        choice: What the trial decided; None if the sampler was given, or the plan was stored.
    """

    sampler: str
    options: dict[str, Any]
    uses_transport: bool
    starts: np.ndarray
    is_from_transport: np.ndarray
    description: dict[str, Any]
    transport: AbstractTransport | None = None
    explored: Explored | None = None
    weighed: Weighed | None = None
    history: dict[str, np.ndarray] = {}  # noqa: RUF012 (never written to)
    thin: int | None = None
    is_brief: bool = False
    rounds: int = 1
    step_seconds: float = float("inf")
    promise: float | None = None
    num_tied: int = 0
    has_modes: bool = False
    others: OtherStarts | None = None
    choice: Choice | None = None

    def chosen(self, choice: Choice, num_draws: int, policy: Policy) -> "Plan":
        """The plan with another choice of its trial."""
        row, thin = choice.row, thin_of(choice, policy)
        return self._replace(
            sampler=row.sampler, options=row.options, uses_transport=row.uses_transport, choice=choice,
            description={**self.description, "choice": choice.describe()}, thin=thin,
            is_brief=num_draws * thin * row.step_seconds / row.rounds <= policy.brief_seconds,
            rounds=row.rounds, promise=row.worth if row.agreement else None,
            step_seconds=row.step_seconds if row.sampler == "hybrid" else float("inf"),  # tempering: fewer ladders
        )  # fmt: skip

    def chains(self, target: Target, mesh: Mesh, length: int) -> Chains:
        """The kernel and its chains."""
        problem = Problem(target, self.transport if self.uses_transport else None, self.options)
        return Chains(mesh=mesh, spec=REGISTRY[self.sampler], problem=problem, length=length, is_brief=self.is_brief)


def thinned(draws: Any, limit: int) -> np.ndarray:
    """At most about `limit` draws of all chains, evenly spaced; (chain, draw, ...)."""
    per_chain = max(1, limit // draws.shape[0])
    step = max(1, -(-draws.shape[1] // per_chain))
    return draws[:, (draws.shape[1] - 1) % step :: step]


def compared(theta: np.ndarray, log_prob: np.ndarray, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """Of draws (chain, draw, dim) and their log pi, as many as comparisons look at."""
    most = min(policy.most_compared // theta.shape[-1], policy.most_compared_draws)
    return thinned(theta, most), thinned(log_prob, most)


def set_apart(explored: Explored, draws: np.ndarray, policy: Policy) -> np.ndarray:
    """Of an array of the exploration's draws, those that training has not seen, thinned to what is weighed."""
    return thinned(draws[:, -explored.num_apart :], policy.most_weighed)


# ---- to and from a file


def plan_arrays(plan: Plan) -> dict[str, np.ndarray]:
    """Everything of a plan that is not in its header, as arrays by name; options only if they were chosen here."""
    arrays = {"starts": plan.starts, "is_from_transport": plan.is_from_transport}
    for group, record in (("explored", plan.explored), ("others", plan.others), ("weighed", plan.weighed)):
        fields = {} if record is None else record._asdict()
        arrays |= {f"{group}.{name}": value for name, value in fields.items() if isinstance(value, np.ndarray)}
    for name, value in plan.options.items() if "choice" in plan.description else ():
        if name in ("local_options", "kernel_options"):
            arrays |= {f"{name}.{k}": np.asarray(v) for k, v in value.items() if eqx.is_array(v)}
        elif eqx.is_array(value):
            arrays[f"options.{name}"] = np.asarray(value)
    return arrays


def plan_header(plan: Plan) -> dict[str, Any]:
    """The rest of a plan, as JSON can hold it."""
    explored, weighed = plan.explored, plan.weighed
    return {
        "sampler": plan.sampler, "uses_transport": plan.uses_transport, "description": plan.description,
        "explored": None if explored is None else _plain(explored._asdict()),
        "explored_evidence": None if explored is None else _as_list(explored.evidence),
        "weighed": None if weighed is None else [_as_list(weighed.evidence), weighed.acceptance],
        "num_tied": plan.num_tied, "has_modes": plan.has_modes, "thin": plan.thin, "rounds": plan.rounds,
        "is_brief": plan.is_brief,
        "options": _plain(plan.options), "local_options": _plain(plan.options.get("local_options")),
        "kernel_options": {} if explored is None else _plain(explored.kernel_options),
    }  # fmt: skip


def restored_plan(
    target: Target, transport: AbstractTransport | None, header: dict[str, Any], arrays: Mapping[str, np.ndarray],
    history: dict[str, np.ndarray], fixed: tuple[str, dict[str, Any]] | None,
) -> Plan:  # fmt: skip
    """A plan as it was stored; `fixed` are the sampler and options that the user chose, if any."""
    part = lambda group: {k[len(group) + 1 :]: v for k, v in arrays.items() if k.startswith(f"{group}.")}
    explored, weighed, kernel_options = None, None, {}
    if header["explored"] is not None:
        kernel_options = _prepared(
            target, str(header["explored"]["kernel"]), part("kernel_options"), header["kernel_options"]
        )
        fields: dict[str, Any] = {**part("explored"), **header["explored"], "kernel_options": kernel_options}
        reference = reference_for(target, fields["kernel"])
        explored = Explored(**fields, evidence=_as_log_z(header["explored_evidence"]), reference=reference)
    if header["weighed"] is not None:
        evidence, acceptance = header["weighed"]
        weighed = Weighed(**part("weighed"), evidence=_as_log_z(evidence), acceptance=acceptance)  # type: ignore[arg-type]
    if fixed is not None:
        options = fixed[1]
    else:
        options = {**header["options"], **{k: jnp.asarray(v) for k, v in part("options").items()}}
        if header["sampler"] == "hybrid":
            tuned = part("local_options")
            options["local_options"] = _prepared(target, options["local"], tuned, header["local_options"])
        else:
            assert explored is not None
            options |= {"kernel_options": kernel_options, "reference": explored.reference or UNIFORM}
    plain = ("sampler", "uses_transport", "description", "thin", "rounds", "is_brief", "num_tied", "has_modes")
    return Plan(
        options=options, transport=transport, explored=explored, weighed=weighed, starts=arrays["starts"],
        is_from_transport=arrays["is_from_transport"], history=history, **{name: header[name] for name in plain},
        others=OtherStarts(**part("others")) if "others.theta" in arrays else None,
    )  # fmt: skip


def _prepared(target: Target, name: str, tuned: Mapping[str, np.ndarray], plain: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel's options: what it finds on the host, plain numbers, and what was tuned."""
    prepare = REGISTRY[name].prepare
    found = {} if prepare is None else prepare(target)
    return {**found, **plain, **{k: jnp.asarray(v) for k, v in tuned.items()}}


def _plain(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options that JSON can hold."""
    return {k: v for k, v in (options or {}).items() if isinstance(v, str | int | float)}


def _as_list(value: LogZ | None) -> list[float] | None:
    return None if value is None else [float(v) for v in value]


def _as_log_z(values: Any) -> LogZ | None:
    return None if values is None else LogZ(*[float("nan") if v is None else v for v in values])
