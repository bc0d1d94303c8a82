"""`tz.sample` with the options of the sampler given flat, and the chunk size fixed: how most tests call it."""

from unittest import mock

import terrazzo as tz
from terrazzo.inference import call
from terrazzo.transports import AbstractTransport


def sample_with(log_prob, space=None, *, sampler="auto", sampler_options=None, transport=None, transport_options=None,
        training=None, exploration=None, keep_latent=None, chunk_size=None, vectorized=False, **options):  # fmt: skip
    """Builds the sampler object from flat options, and samples."""
    if vectorized:
        log_prob, space = tz.Target(log_prob, space, vectorized=True), None
    learned = {
        "transport": _transport(transport, transport_options, sampler),
        "training": tz.Training(**training) if isinstance(training, dict) else training,
        "exploration": tz.Exploration(**exploration) if isinstance(exploration, dict) else exploration,
        "keep_latent": keep_latent,
    }
    learned = {name: value for name, value in learned.items() if value is not None}
    if sampler == "auto":
        sampler = tz.Auto(**learned)
    elif sampler in tz.samplers.REGISTRY:
        entry = tz.samplers.REGISTRY[sampler]
        given = {name: value for name, value in learned.items() if name in entry.run_options}
        sampler = entry(**given, **sampler_options or {})
    with mock.patch.object(call, "CHUNK_SIZE", chunk_size):
        return tz.sample(log_prob, space, sampler=sampler, **options)


def _transport(transport, options, sampler):
    if not options or isinstance(transport, AbstractTransport) or transport is False:
        return transport
    name = transport or ("autoregressive" if sampler in ("auto", "hybrid") else "flow")
    return {"autoregressive": tz.autoregressive, "flow": tz.flow, "product": tz.product}[name](**options)
