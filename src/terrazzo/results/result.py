"""Results: draws in the user's values, what the chains say about themselves, and whether to trust them.

A `Result` is immutable and knows no sampler: it is arrays, a `Space` and a record of how they came about.
The verdict is a list of checks with thresholds (`Result.checks()`); callers that know more than the draws, such as
the mode-loss checks of docs/theory.md, trap 4, hand theirs in as `extra_checks`.
"""

import dataclasses
import html
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.diagnostics import LogZ
from terrazzo.errors import OptionError, SpaceError, UnsupportedError, arguments
from terrazzo.results import exports
from terrazzo.results.draws import Codes, Draws, Replicas, frozen
from terrazzo.results.stored import read_result, write_result
from terrazzo.spaces import Space
from terrazzo.storage.files import jsonable
from terrazzo.storage.setups import Setup
from terrazzo.verdict.checks import Check, Diagnosis, Verdict, chain_checks, judge, settled
from terrazzo.verdict.summaries import Summary, summarise

QUICK_SIZE = 2_000_000  # a repr may take as long as diagnosing this many numbers


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What sampling returns.

    Args:
        space: The space the draws live in.
        theta: Flat draws, shape (chain, draw, d), inner integers. They are kept in the smallest type (`codes`),
            and `result.theta` is a fresh int64 array each time: name it once where memory counts.
        sample_stats: Per draw, shape (chain, draw): `log_prob`, `acceptance_rate`, `num_evaluations`, and others.
        reals: Values of the real variables, flat, shape (chain, draw, value), in the user's scale; None without any.
        latent: Latent draws z of shape (chain, draw, d), if they were asked for.
        evidence: log Z with its standard error: the most precise of the estimates that are sound; NaN where they
            contradict each other, None if there are none.
        evidence_estimates: log Z by each way it was estimated: "exact", "importance", "bridge", "tempering".
        log_z_verdict: How far to trust the headline estimate, and what it rests on, or why there is none; apart from
            the verdict on the draws.
        transport: The transport used, if there was one.
        provenance: How the draws came about: sampler, options, seed, versions, seconds (anything JSON can hold).
        history: Training curves by name.
        is_complete: Whether the run reached its end (an interrupted run still gives a result).
        extra_checks: Further checks that need more than the draws.
        plan: What the default sampler decided: `tz.sample(..., plan=result.plan)` repeats the run bit for bit.
        replicas: What all temperatures of a ladder saw, for parallel tempering.
        continuation: What `extend` calls; it is not stored.
        model: The model of another library that the target came from: its data, which are stored, and how to
            predict new ones, which is not.

    >>> import terrazzo as tz
    >>> theta = np.random.default_rng(0).integers(0, 2, (4, 500, 3)).astype(np.uint8)
    >>> result = Result(space=tz.Space(tz.binary(3)), theta=theta, sample_stats={"log_prob": -theta.sum(2) * 1.0})
    >>> result.draws["theta"].shape
    (4, 500, 3)
    >>> result.verdict.grade  # chains that agree, but nothing else to compare them with
    'unchecked'
    """

    space: Space
    theta: Any = Codes()  # noqa: RUF009 (arrays, or a `StoredArray` of a checkpoint, as are the next three)
    sample_stats: Mapping[str, Any] = field(default_factory=dict)
    reals: Any = None
    latent: Any = None
    evidence: LogZ | None = None
    evidence_estimates: Mapping[str, LogZ] = field(default_factory=dict)
    log_z_verdict: Verdict | None = None
    transport: Any = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, np.ndarray] | None = None
    is_complete: bool = True
    extra_checks: tuple[Check, ...] = ()
    plan: Setup | None = None
    replicas: Replicas | None = None
    continuation: Callable[["Result", int], "Result"] | None = None
    model: Any = None

    def __post_init__(self) -> None:
        theta = self.codes
        widths = (self.space.num_dims, 0) if self.kept else (self.space.num_dims,)
        if theta.ndim != 3 or theta.shape[2] not in widths or theta.dtype.kind not in "iu":
            raise SpaceError(
                "theta", f"has {theta.dtype} shape {theta.shape}", f"integers (chain, draw, {self.space.num_dims})"
            )
        set_ = object.__setattr__
        is_right = theta.dtype == self.space.dtype
        set_(self, "theta", frozen(theta if is_right else np.asarray(theta).astype(self.space.dtype)))
        stats = {name: frozen(values) for name, values in self.sample_stats.items()}
        for name, values in stats.items():
            if values.shape[:2] != theta.shape[:2]:
                raise OptionError(f"sample_stats[{name!r}]", f"has shape {values.shape}", "begin with (chain, draw)")
        set_(self, "sample_stats", stats)
        if self.space.num_reals:
            shape = (*theta.shape[:2], self.space.num_real_values)
            if self.reals is None or self.reals.shape != shape:
                raise SpaceError("reals", "are missing or of another shape", f"numbers of shape {shape}")
            set_(self, "reals", frozen(self.reals))
        set_(self, "latent", None if self.latent is None else frozen(self.latent))
        if self.history is not None:
            set_(self, "history", {name: frozen(values) for name, values in self.history.items()})
        set_(self, "provenance", jsonable(self.provenance))
        set_(self, "extra_checks", tuple(self.extra_checks))

    def changed(self, **fields: Any) -> "Result":
        """The same result with other fields. The draws stay as they are kept, small or on disk.

        (`dataclasses.replace` would read `theta`, and so all draws as int64.)
        """
        return dataclasses.replace(self, **{"theta": self.codes, **fields})

    # ---- the draws

    @cached_property
    def draws(self) -> Draws:
        """Draws by name, shape (chain, draw, *shape), in the user's values."""
        return Draws(self.space, self.codes, self.reals)

    def __getitem__(self, name: str) -> np.ndarray:
        """The draws of a variable, shape (chain, draw, *shape), in the user's values; or of a value that was kept."""
        return np.asarray(self.sample_stats[name]) if name in self.kept else self.draws[name]

    def __iter__(self) -> Iterator[str]:
        """The names that `result[name]` takes."""
        return iter((*self.kept, *self.draws))

    def __contains__(self, name: object) -> bool:
        return name in tuple(self)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of the values that were kept in place of configurations (`keep` of a sampler)."""
        return tuple(self.provenance.get("keep", ()))

    @property
    def codes(self) -> Any:
        """Flat draws as they are stored, in the smallest unsigned type: for storage, not for arithmetic.

        Where they are too large for memory they lie in a checkpoint, and indexing reads the part that is asked for.
        """
        return self.__dict__["codes"]

    @property
    def num_chains(self) -> int:
        return self.codes.shape[0]

    @property
    def num_draws(self) -> int:
        return self.codes.shape[1]

    @property
    def log_prob(self) -> Any:
        """Log pi of each draw, shape (chain, draw)."""
        return self.sample_stats.get("log_prob")

    @property
    def log_weights(self) -> Any:
        """Log importance weights of the draws, shape (chain, draw); None where all draws weigh the same."""
        return self.sample_stats.get("log_weight")

    @property
    def log_z(self) -> float | None:
        """The estimate of log Z; NaN where none is sound (`log_z_verdict` says why), None if none was made."""
        return None if self.evidence is None else self.evidence.log_z

    @property
    def log_z_standard_error(self) -> float | None:
        return None if self.evidence is None else self.evidence.standard_error

    @cached_property
    def constant(self) -> list[str]:
        """Names of the coordinates that no draw of any chain ever changed."""
        names: list[str] = []
        for values, known in (
            (self.codes, self.space.discrete.coordinate_names()), (self.reals, self.space.real_coordinate_names()),
        ):  # fmt: skip
            if values is not None and values.size:
                is_constant = values.min(axis=(0, 1)) == values.max(axis=(0, 1))
                names += [name for name, same in zip(known, is_constant, strict=True) if same]
        return names

    # ---- what they say

    @cached_property
    def _summary(self) -> Summary:
        weights = self.log_weights
        return summarise(
            self.space, self.codes, self.log_prob, None if weights is None else np.exp(weights - weights.max()),
            {name: self.sample_stats[name] for name in self.kept}, self.reals,
        )  # fmt: skip

    def summary(self) -> Any:
        """Mean, sd, mcse, ess_bulk, ess_tail and r_hat of every coordinate, with the verdict below.

        A DataFrame where pandas is installed, else a table that prints the same (`Summary`).
        """
        summary = self._with_verdict
        try:
            return summary.to_pandas()
        except ImportError:
            return summary

    @property
    def _with_verdict(self) -> Summary:
        return dataclasses.replace(self._summary, notes=(*self._summary.notes, f"verdict: {self.verdict}"))

    def checks(self) -> list[Check]:
        """Every check with its value and threshold; the decisive ones make the verdict."""
        own = chain_checks(
            self._summary,
            num_chains=self.num_chains,
            num_constant=len(self.constant),
            acceptance_rate=self.sample_stats.get("acceptance_rate"),
            evidence=self.evidence,
            is_complete=self.is_complete,
            num_draws=self.num_draws,
            num_asked=int(self.provenance.get("draws", self.num_draws)),
            is_explored="warm-up" in self.provenance,
            log_weights=self.log_weights,
        )
        return settled(own, self.extra_checks)

    @cached_property
    def verdict(self) -> Verdict:
        """How far to trust the draws (exact, trusted, unchecked, not trusted), and why, in one line."""
        return judge(
            self.checks(), self.num_chains, len(self.constant), self.space.num_dims + self.space.num_real_values
        )

    def diagnose(self) -> Diagnosis:
        """Every check with its number, its threshold and what to do; it prints as a table."""
        return Diagnosis(
            self.verdict, tuple(self.checks()), dict(self.evidence_estimates), self.choice, self.log_z_verdict
        )

    @property
    def choice(self) -> str | None:
        """Why the default sampler moves as it does, in one line; None if the sampler was given."""
        found = self.provenance.get("warm-up", {}).get("choice")
        return None if found is None else f"{found['chosen']} ({found['reason']})"

    def __repr__(self) -> str:
        parts = [f"{self.num_chains} chains x {self.num_draws} draws of {_describe_space(self.space)}"]
        if "sampler" in self.provenance:
            parts.append(f"by {self.provenance['sampler']}")
        if self.evidence is not None:
            parts.append(f"log Z {self.evidence.log_z:.4g} +- {self.evidence.standard_error:.2g}")
        if "verdict" in self.__dict__ or self.codes.size <= QUICK_SIZE:
            parts.append(str(self.verdict))
        elif not self.is_complete:
            parts.append("interrupted")
        return f"Result({', '.join(parts)})"

    def _repr_html_(self) -> str:
        lines = [f"<p><b>{html.escape(repr(self))}</b></p>"]
        if "_summary" in self.__dict__ or self.codes.size <= QUICK_SIZE:
            lines.append(self._with_verdict._repr_html_())
        return f"<div>{''.join(lines)}</div>"

    # ---- elsewhere

    def to_pandas(self) -> Any:
        """One line a draw: chain, number, a column a coordinate, and the figures of the draw (needs pandas)."""
        return exports.to_pandas(self)

    def to_arviz(self) -> Any:
        """The draws as ArviZ holds them: an InferenceData (ArviZ 0.x) or a DataTree (ArviZ 1.x).

        Unordered variables are integer codes, their labels in the attribute `labels`.
        """
        return exports.to_arviz(self)

    def predictive(self, *args: Any, draws: int = 100, seed: int = 0, **kwargs: Any) -> dict[str, np.ndarray]:
        """New data from the model that the target came from, one data set for each of some draws.

        Args:
            *args: Other arguments of a NumPyro model than those it was given (new covariates, say, and None for data).
            draws: Draws a chain, evenly spaced over those that are kept.
            seed: Of the new data.
            **kwargs: Other keyword arguments of a NumPyro model.

        Returns:
            Arrays (chain, draw, *shape) by name: what was observed, redrawn, and deterministic sites.
        """
        return exports.predictive(self, args, kwargs, draws=draws, seed=seed)

    def plot(self, kind: str = "trace", **options: Any) -> Any:
        """A plot of ArviZ (`pip install terrazzo[plots]`).

        Args:
            kind: What ArviZ's functions are called: "trace" for `plot_trace`, "rank", "forest", "posterior", ...
            **options: Passed on to that function: `var_names`, `coords`, ...
        """
        return exports.plot(self, kind, **options)

    def report(self, path: Any) -> Path:
        """Writes the page of this run: one HTML file that needs no network, for screens, phones and paper.

        It shows the verdict and why, the modes, the posterior of every variable, traces and ranks, correlations, log Z
        by every way, what each phase cost, a table of all coordinates, and how to repeat the run.

        Args:
            path: Where to write, e.g. "run.html".

        >>> import tempfile, terrazzo as tz
        >>> theta = np.random.default_rng(0).integers(0, 2, (4, 100, 3)).astype(np.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = Result(space=tz.Space(tz.binary(3)), theta=theta).report(f"{folder}/run.html")
        ...     page.read_text(encoding="utf-8")[:15]
        '<!DOCTYPE html>'
        """
        from terrazzo.report import write_page  # late: a page is made of results, not the other way round

        return write_page(self, path)

    def extend(self, *, draws: int) -> "Result":
        """The same run with so many more draws a chain: what `tz.sample` would have given for all of them.

        It needs the process that sampled; a stored run is continued by `tz.sample(..., checkpoint=folder)`.

        >>> import jax.numpy as jnp, terrazzo as tz
        >>> run = lambda n: tz.sample(lambda t: 0.5 * jnp.sum(t), tz.binary(3), seed=0, draws=n, progress="off")
        >>> bool((run(30).extend(draws=20)["theta"] == run(50)["theta"]).all())
        True
        """
        arguments.count("draws", draws)
        if self.continuation is None:
            raise UnsupportedError("extend", "needs the process that sampled", "tz.sample(..., checkpoint='folder')")
        return self.continuation(self, draws)

    def save(self, path: Any, *, compress: bool = False) -> Path:
        """Writes everything to one file (zip of JSON and arrays, checksummed, no pickle), atomically.

        Args:
            path: Where to write; `Result.load(path)` reads it back.
            compress: Whether to deflate: smaller and slower.
        """
        return write_result(self, path, compress=compress)

    @classmethod
    def load(cls, path: Any) -> "Result":
        """Reads a result back; `FileFormatError` if the file is damaged or not ours. Runs no code of the file.

        Args:
            path: A file that `save` wrote, or the folder of a checkpoint: draws that are large stay there, and are read
                as they are asked for.
        """
        if Path(path).is_dir():
            from terrazzo.results.folders import open_folder  # late: it opens results

            return open_folder(path)
        return read_result(path, cls)


def _describe_space(space: Space) -> str:
    shown = [f"{name} {v.kind}{list(v.shape) if v.shape else ''}" for name, v in space.variables[:4]]
    return ", ".join(shown) + (f" and {len(space.variables) - 4} more" if len(space.variables) > 4 else "")
