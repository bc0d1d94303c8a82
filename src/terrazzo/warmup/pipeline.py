"""The pipeline: tempered exploration -> a trial of local moves -> a transport, if it can pay -> its trial -> a plan.

If chains of the plan that start elsewhere (`hunt`) stay in a mode that tempering did not find, a transport is learned
from the draws of both, and the choice is made again.

Nothing here touches exactness: whatever is chosen, the chains that follow leave pi invariant. The plan also carries
what the verdict needs from outside the transport: tempered draws, their weights, and a second estimate of log Z.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from terrazzo import devices
from terrazzo.background import meanwhile
from terrazzo.diagnostics import LogZ, importance_summary
from terrazzo.progress import Progress
from terrazzo.samplers import REGISTRY
from terrazzo.targets import Target
from terrazzo.transports import AbstractTransport, posterior_log_weights, sample_transport
from terrazzo.warmup.budget import Budget
from terrazzo.warmup.exploration import Explored, explore
from terrazzo.warmup.hunt import OtherStarts
from terrazzo.warmup.learning import learn
from terrazzo.warmup.prospect import Rival, has_nothing_to_bring
from terrazzo.warmup.reach import NUM_DRAWS, cut_off
from terrazzo.warmup.trial import Choice, Trial

OWN_DRAWS = 8192
MAX_WEIGHED = 4096  # tempered draws whose weights are looked at
ROUNDS, MOST_ROUNDS = 8, 16  # of the hybrid in one compiled step, on an accelerator
NOT_BEGUN = "no transport was learned, because single local moves already draw independently and time is limited"
GIVEN_UP = "a transport was given up in training, which foretold that it would be worth less"


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
        transport: The learned transport, or None.
        uses_transport: Whether the sampler moves through it.
        explored: The tempered draws; None if there was no exploration.
        weighed: What the transport says of itself and of them, or None.
        starts: Where the chains start, (chain, dim).
        is_from_transport: Which chains start from the transport.
        history: Training curves.
        description: What the result keeps of all this.
        thin: Rounds a kept draw, if the trial says so.
        rounds: Rounds that one step of the sampler plays: the user's steps are rounds.
        step_seconds: Seconds of one step of all chains, if the trial timed it; else infinite.
        promise: Effective draws a second that the trial saw, or None.
        num_tied: How many sites must change together, if single sites are cut off; else 0.
        has_modes: Whether draws of modes that tempering did not find were learned from.
        others: Chains of the sampler that began at hunted configurations, once they have run.
    """

    sampler: str
    options: dict[str, Any]
    transport: AbstractTransport | None
    uses_transport: bool
    explored: Explored | None
    weighed: Weighed | None
    starts: np.ndarray
    is_from_transport: np.ndarray
    history: dict[str, np.ndarray]
    description: dict[str, Any]
    thin: int | None
    rounds: int
    step_seconds: float
    promise: float | None = None
    num_tied: int = 0
    has_modes: bool = False
    others: OtherStarts | None = None


def rounds_a_step(thin: int | None) -> int:
    """Rounds of the hybrid that one step plays: on an accelerator several, a divisor of the thinning asked for.

    Their proposals are then drawn side by side, which costs hardly more than one.

    >>> rounds_a_step(10)
    1
    """
    if jax.default_backend() == "cpu":
        return 1
    return ROUNDS if thin is None else max(r for r in range(1, MOST_ROUNDS + 1) if thin % r == 0)


def thinned(draws: np.ndarray, limit: int) -> np.ndarray:
    """At most about `limit` draws of all chains, evenly spaced; (chain, draw, ...)."""
    per_chain = max(1, limit // draws.shape[0])
    step = max(1, -(-draws.shape[1] // per_chain))
    return draws[:, ::-1][:, ::step][:, ::-1]


def set_apart(explored: Explored, draws: np.ndarray) -> np.ndarray:
    """Of an array of the exploration's draws, those that training has not seen, thinned to what is weighed."""
    return thinned(draws[:, -explored.num_apart :], MAX_WEIGHED)


def weigh(key: Array, transport: AbstractTransport, target: Target, explored: Explored) -> Weighed:
    """Draws from the transport, and weighs them and the tempered draws."""
    own_key, lift_key = jax.random.split(key)
    own = sample_transport(own_key, transport, target, OWN_DRAWS)
    weights = np.asarray(own.log_weights, float)
    tempered = np.asarray(
        posterior_log_weights(lift_key, transport, target, set_apart(explored, explored.theta)), float
    )
    pairs = np.random.default_rng(0).choice(weights, tempered.size)
    with np.errstate(invalid="ignore", over="ignore"):
        rates = np.exp(np.minimum(0.0, pairs - tempered.ravel()))
    possible = np.isfinite(np.asarray(own.log_prob))
    return Weighed(
        np.asarray(own.theta)[possible], weights, tempered, importance_summary(weights), float(np.nanmean(rates))
    )


def spread_starts(explored: Explored, weighed: Weighed | None, num_chains: int) -> tuple[np.ndarray, np.ndarray]:
    """Half of the chains start from the transport, half from the tempered draws (all, if there is no transport)."""
    ladders, kept, dim = explored.theta.shape
    turns = -(-num_chains // ladders)
    places = np.linspace(kept - 1, kept // 2, turns).astype(int)  # the latest first
    tempered = explored.theta[:, places].swapaxes(0, 1).reshape(-1, dim)[:num_chains]
    starts = tempered.astype(np.int32)
    is_pushed = np.zeros(num_chains, bool)
    if weighed is not None and len(weighed.theta) >= num_chains // 2:
        is_pushed[: num_chains // 2] = True
        starts[is_pushed] = weighed.theta[: num_chains // 2]
    return starts, is_pushed


class Planner:
    """Makes the plan of one run, and makes it again when more is known.

    Args:
        key: A JAX key.
        target: The target.
        transport: An untrained transport (or a trained one, with `training=False`), or None.
        num_chains: The chains of the run to come.
        num_draws: Its kept draws a chain.
        thin: Its rounds a kept draw, if the user chose them.
        mesh: Their devices.
        length: Draws a chunk of that run can hold.
        training: Options of training; False leaves the transport as it is.
        exploration: Options of `explore`; None for none.
        fixed: A sampler's name and options that the user chose; None to choose by trial.
        may_give_up: Whether a transport that cannot pay is let go before its training ends.
        starts: Where exploration starts, (start, dim), if the user said so.
        budget: What all this may spend.
        progress: Where phases show.
    """

    def __init__(
        self, key: Array, target: Target, transport: AbstractTransport | None, *, num_chains: int, num_draws: int,
        thin: int | None, mesh: Mesh, length: int, training: Mapping[str, Any] | bool | None,
        exploration: Mapping[str, Any] | None, fixed: tuple[str, dict[str, Any]] | None, may_give_up: bool,
        starts: np.ndarray | None, budget: Budget, progress: Progress,
    ):  # fmt: skip
        self.key, self.target, self.transport = key, target, transport
        self.num_chains, self.num_draws, self.mesh, self.training = num_chains, num_draws, mesh, training
        self.exploration, self.fixed, self.may_give_up, self.starts = exploration, fixed, may_give_up, starts
        self.budget, self.progress = budget, progress
        self.explore_key, self.learn_key, self.weigh_key, trial_key = jax.random.split(key, 4)
        self.num_tied = self._find_ties()
        self.trial: Trial | None = None
        if fixed is None:
            self.trial = Trial(
                trial_key, target, num_chains=num_chains, mesh=mesh, length=length, rounds=rounds_a_step(thin),
                budget=budget, progress=progress, num_tied=self.num_tied,
            )  # fmt: skip
        self.explored: Explored | None = None
        self.rival: Rival | None = None

    def _find_ties(self) -> int:
        """How many sites must change together, seen from where chains could start."""
        starts = self.starts
        if starts is None:
            starts = np.asarray(self.target.possible_starts(jax.random.fold_in(self.key, 1), NUM_DRAWS))
        return cut_off(np.random.default_rng(0), self.target, starts, blocked=np.inf).num_sites

    def make(self) -> Plan:
        """Explores, tries, learns, tries what was learned, and returns what to run."""
        if self.exploration is not None:
            with meanwhile(iter(()) if self.trial is None else self.trial.compile_ahead()):
                self.explored = explore(
                    self.explore_key, self.target, budget=self.budget, progress=self.progress, starts=self.starts,
                    num_tied=self.num_tied, **self.exploration,
                )  # fmt: skip
        note, transport = "", self.transport if self.explored is not None else None
        if self.trial is not None:
            self.rival = self.trial.try_without(self.explored, self._spread(None)[0])
            is_needless = has_nothing_to_bring(self.rival, seconds_left=self.budget.total_seconds_left)
            if transport is not None and self.may_give_up and is_needless:
                transport, note = None, NOT_BEGUN
        return self._choose(self.explored, transport, self.rival if self.may_give_up else None, note, has_modes=False)

    def make_again(self, theta: np.ndarray, log_prob: np.ndarray) -> Plan:
        """The plan with a transport that is learned from the draws of further modes too, (mode, draw, dim)."""
        explored = self.explored
        assert explored is not None
        places = np.arange(explored.theta.shape[1]) % theta.shape[1]
        both = explored._replace(
            theta=np.concatenate([explored.theta, theta[:, places].astype(explored.theta.dtype)]),
            log_prob=np.concatenate([explored.log_prob, log_prob[:, places].astype(explored.log_prob.dtype)]),
        )
        return self._choose(both, self.transport, None, "", has_modes=True)

    def _spread(self, weighed: "Weighed | None", explored: Explored | None = None) -> tuple[np.ndarray, np.ndarray]:
        found = self.explored if explored is None else explored
        if found is not None:
            return spread_starts(found, weighed, self.num_chains)
        starts = self.starts
        if starts is None:
            starts = np.asarray(self.target.possible_starts(jax.random.fold_in(self.key, 2), self.num_chains))
        return np.resize(starts, (self.num_chains, self.target.space.num_dims)), np.zeros(self.num_chains, bool)

    def _choose(
        self, explored: Explored | None, transport: AbstractTransport | None, rival: Rival | None, note: str, *,
        has_modes: bool,
    ) -> Plan:  # fmt: skip
        """Learns a transport from the draws, if there is one, tries it, and chooses."""
        description: dict[str, Any] = {"tied_sites": self.num_tied}
        if self.explored is not None:
            description["exploration"] = self.explored.describe()
        history: dict[str, np.ndarray] = {}
        weighed = None
        if transport is not None and self.training is not False and explored is not None:
            settings = dict(self.training) if isinstance(self.training, Mapping) else {}
            learned = learn(
                jax.random.fold_in(self.learn_key, int(has_modes)), transport, self.target, explored,
                budget=self.budget, progress=self.progress, settings=settings, rival=rival,
            )  # fmt: skip
            history, description["training"] = learned.history, learned.summary
            transport, note = (None, GIVEN_UP) if learned.is_given_up else (learned.transport, "")
        if transport is not None and explored is not None:
            self.progress.phase("weighing the transport")
            weighed = weigh(self.weigh_key, transport, self.target, explored)
            description["transport"] = {
                "is_ess": weighed.evidence.ess / len(weighed.own_log_weights), "acceptance": weighed.acceptance,
                "pareto_k": weighed.evidence.pareto_k,
            }  # fmt: skip
            transport = placed(self.mesh, transport)
        starts, is_pushed = self._spread(weighed, explored)
        wanted, rounds, step_seconds, promise = None, 1, float("inf"), None
        if self.fixed is not None:
            name, options = self.fixed
            uses = "transport" in REGISTRY[name].needs
        else:
            assert self.trial is not None
            if has_modes:
                self.trial.begin_again(starts)
            if transport is not None and weighed is not None:
                self.trial.try_transport(transport, weighed.acceptance)
            choice: Choice = self.trial.choice(note=note)
            name, options, uses = choice.row.sampler, choice.row.options, choice.row.uses_transport
            description["choice"], wanted, rounds = choice.describe(), choice.thin(self.num_draws), choice.row.rounds
            promise = choice.row.worth if choice.row.agreement else None
            if name == "hybrid":  # tempering was timed on fewer ladders
                step_seconds = choice.row.step_seconds
        return Plan(
            sampler=name, options=options, transport=transport, uses_transport=uses, explored=self.explored,
            weighed=weighed, starts=starts, is_from_transport=is_pushed, history=history, description=description,
            thin=wanted, rounds=rounds, step_seconds=step_seconds, promise=promise, num_tied=self.num_tied,
            has_modes=has_modes,
        )  # fmt: skip

    def next_best(self, plan: Plan) -> Plan | None:
        """The plan with the next best candidate of the trial, or None if there is none that met."""
        if self.trial is None:
            return None
        choice = self.trial.next_choice()
        if choice is None:
            return None
        return plan._replace(
            sampler=choice.row.sampler, options=choice.row.options, uses_transport=choice.row.uses_transport,
            description={**plan.description, "choice": choice.describe()}, thin=choice.thin(self.num_draws),
            rounds=choice.row.rounds, promise=choice.row.worth,
            step_seconds=choice.row.step_seconds if choice.row.sampler == "hybrid" else float("inf"),
        )  # fmt: skip


def placed(mesh: Mesh, transport: AbstractTransport | None) -> AbstractTransport | None:
    """The transport on every device of the chains' mesh: training may have left it on one."""
    arrays, static = eqx.partition(transport, eqx.is_array)
    return eqx.combine(devices.replicate(mesh, arrays), static)


# ---- to and from a checkpoint


def plan_arrays(plan: Plan) -> dict[str, np.ndarray]:
    """Everything of a plan that is not in its description, as arrays by name; options only if they were chosen here."""
    found = {} if plan.explored is None else plan.explored._asdict()
    arrays = {f"explored.{name}": value for name, value in found.items() if isinstance(value, np.ndarray)}
    if plan.others is not None:
        arrays |= {f"others.{name}": value for name, value in plan.others._asdict().items()}
    if plan.weighed is not None:
        fields = ("theta", "own_log_weights", "tempered_log_weights")
        arrays |= {f"weighed.{name}": getattr(plan.weighed, name) for name in fields}
    arrays |= {"starts": plan.starts, "is_from_transport": plan.is_from_transport}
    for name, value in plan.options.items() if "choice" in plan.description else ():
        if name in ("local_options", "kernel_options"):
            arrays |= {f"{name}.{k}": np.asarray(v) for k, v in value.items() if eqx.is_array(v)}
        elif eqx.is_array(value):
            arrays[f"options.{name}"] = np.asarray(value)
    return arrays


def plan_header(plan: Plan) -> dict[str, Any]:
    """The rest of a plan, as JSON can hold it."""
    explored = plan.explored
    rest = None if explored is None else {
        name: value for name, value in explored._asdict().items()
        if isinstance(value, str | int | float) and not isinstance(value, np.ndarray)
    }  # fmt: skip
    return {
        "sampler": plan.sampler, "uses_transport": plan.uses_transport, "description": plan.description,
        "explored": rest, "explored_evidence": None if explored is None else _as_list(explored.evidence),
        "num_tied": plan.num_tied, "has_modes": plan.has_modes,
        "weighed": None if plan.weighed is None else {
            "evidence": _as_list(plan.weighed.evidence), "acceptance": plan.weighed.acceptance,
        },
        "thin": plan.thin, "rounds": plan.rounds,
        "options": _plain(plan.options), "local_options": _plain(plan.options.get("local_options")),
        "kernel_options": {} if explored is None else _plain(explored.kernel_options),
    }  # fmt: skip


def restored_plan(
    target: Target, transport: AbstractTransport | None, header: dict[str, Any], arrays: Mapping[str, np.ndarray],
    history: dict[str, np.ndarray], fixed: tuple[str, dict[str, Any]] | None,
) -> Plan:  # fmt: skip
    """A plan as it was stored."""
    part = lambda group: {k[len(group) + 1 :]: v for k, v in arrays.items() if k.startswith(f"{group}.")}
    explored, kernel_options = None, {}
    if header["explored"] is not None:
        kernel, plain = str(header["explored"]["kernel"]), header["kernel_options"]
        kernel_options = _prepared(target, kernel, part("kernel_options"), plain)
        fields: dict[str, Any] = {**part("explored"), **header["explored"], "kernel_options": kernel_options}
        explored = Explored(**fields, evidence=_as_log_z(header["explored_evidence"]))
    weighed = None
    if header["weighed"] is not None:
        weighed = Weighed(
            **part("weighed"), evidence=_as_log_z(header["weighed"]["evidence"]),  # type: ignore[arg-type]
            acceptance=header["weighed"]["acceptance"],
        )  # fmt: skip
    if fixed is not None:
        options = fixed[1]
    else:
        options = {**header["options"], **{k: jnp.asarray(v) for k, v in part("options").items()}}
        if header["sampler"] == "hybrid":
            options["local_options"] = _prepared(
                target, options["local"], part("local_options"), header["local_options"]
            )
        else:
            options["kernel_options"] = kernel_options
    others = OtherStarts(**part("others")) if "others.theta" in arrays else None
    return Plan(
        sampler=header["sampler"], options=options, transport=transport, uses_transport=header["uses_transport"],
        explored=explored, weighed=weighed, starts=arrays["starts"], is_from_transport=arrays["is_from_transport"],
        history=history, description=header["description"], thin=header["thin"], rounds=header["rounds"],
        step_seconds=float("inf"), num_tied=header["num_tied"], has_modes=header["has_modes"], others=others,
    )  # fmt: skip


def _prepared(target: Target, name: str, tuned: Mapping[str, np.ndarray], plain: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel's options: what it finds on the host, plain numbers, and what was tuned."""
    prepare = REGISTRY[name].prepare
    found = {} if prepare is None else prepare(target)
    return {**found, **plain, **{k: jnp.asarray(v) for k, v in tuned.items()}}


def _plain(options: Any) -> dict[str, Any]:
    """Options that JSON can hold."""
    return {k: v for k, v in (options or {}).items() if isinstance(v, str | int | float)}


def _as_list(value: LogZ | None) -> list[float] | None:
    return None if value is None else [float(v) for v in value]


def _as_log_z(values: Any) -> LogZ | None:
    return None if values is None else LogZ(*[float("nan") if v is None else v for v in values])
