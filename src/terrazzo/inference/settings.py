"""What a run was asked for."""

from typing import Any, NamedTuple


class Settings(NamedTuple):
    """What the user asked for, checked.

    Attributes:
        sampler: The sampler's name, or "auto".
        seed: The seed.
        chains: Independent chains.
        draws: Kept draws a chain.
        warmup: Tuning (or burn-in) steps a chain.
        thin: Steps a kept draw; None fills `max_seconds`, or is 1.
        chunk_size: Kept draws a compiled call, or None.
        keep_latent: Whether latent draws are kept.
        keep: What is kept in place of configurations (`inference.keeping`), or None.
        training: Options of training, or False.
        exploration: Options of the exploration, or None for none.
        is_transport_asked: Whether the user named a transport or how to train it: then it is not given up.
        may_enumerate: Whether evaluating all configurations, where that is possible, answers the call.
        identity: What a plan of this run is for: the target, the chains.
        may_restart: Whether a run that float32 cannot resolve may start again in float64.
        model: What the result keeps of the model of another library, or None.
    """

    sampler: str
    seed: int
    chains: int
    draws: int
    warmup: int
    thin: int | None
    chunk_size: int | None
    keep_latent: bool
    keep: Any
    training: Any
    exploration: dict[str, Any] | None
    is_transport_asked: bool
    may_enumerate: bool
    may_restart: bool
    identity: dict[str, Any]
    model: Any = None
