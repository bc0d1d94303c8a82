"""The sites of one chain on several devices: the draws of one device, and a part of the memory on each."""

import jax.numpy as jnp
import pytest

import terrazzo as tz
from forced_devices import on_devices
from terrazzo.errors import OptionError, UnsupportedError

PROGRAM = """
    import hashlib, json, sys
    import jax, jax.numpy as jnp, numpy as np
    import terrazzo as tz
    from terrazzo.engine.loop import Chains

    def ising(theta):
        s = 2.0 * theta.reshape(16, 16) - 1.0
        return 0.3 * jnp.sum(s * (jnp.roll(s, 1, 0) + jnp.roll(s, 1, 1)))

    cases = {
        "weights": (ising, tz.binary(256), (1, 2, 8)),
        "tables": (lambda t: 0.5 * jnp.sum(jnp.cos(2.0 * (t[1:] - t[:-1]))), tz.integers(0, 2, 32), (1, 8)),
        "terms": (lambda t: jnp.sum(jnp.cos(0.7 * t.reshape(-1, 8).sum(1))), tz.integers(0, 7, 64), (1, 8)),
    }
    real, out = Chains.draw, {}

    def draw(self, *args):
        states, *rest = real(self, *args)
        held = jax.tree.leaves((self.on_devices().problem, states))
        held = [x for x in held if isinstance(x, jax.Array)]
        first = jax.devices()[0]
        here = [s.data.nbytes for x in held for s in x.addressable_shards if s.device == first]
        seen.update(bytes=sum(here), sites=states.position.addressable_shards[0].data.shape[1],
                    kind=type(self.problem.options["conditionals"][0]).__name__)
        return (states, *rest)

    Chains.draw = draw
    for name, (log_prob, space, counts) in cases.items():
        for chains in (1, 2) if name == "weights" else (1,):
            for count in counts if chains == 1 else (1, 8):
                for shard in (False, True) if count == 1 else (True,):
                    seen, sampler = {}, tz.samplers.coloured_gibbs(shard_sites=shard)
                    with tz.use_devices(count):
                        result = tz.sample(log_prob, space, seed=1, chains=chains, draws=12, warmup=4, sampler=sampler,
                                           progress="off")
                    drawn = hashlib.sha256(np.asarray(result.codes).tobytes()).hexdigest()
                    label = f"{name} {chains} {count} {'sharded' if shard else 'whole'}"
                    out[label] = {"drawn": drawn, "log_prob": result.log_prob.tolist(), **seen}
    json.dump(out, sys.stdout)
"""


@pytest.fixture(scope="module")
def runs():
    return on_devices(8, program=PROGRAM)


@pytest.mark.parametrize("name", ["weights 1", "weights 2", "tables 1", "terms 1"])
def test_draws_are_those_of_one_device(runs, name):
    mine = {label: run for label, run in runs.items() if label.startswith(name)}
    assert len(mine) == (4 if name == "weights 1" else 3)
    assert len({run["drawn"] for run in mine.values()}) == 1
    whole = mine[f"{name} 1 whole"]
    for run in mine.values():  # sums over devices round differently
        assert run["log_prob"][0] == pytest.approx(whole["log_prob"][0], rel=1e-5, abs=1e-5)


def test_conditionals_are_of_every_kind(runs):
    kinds = {name: runs[f"{name} 1 8 sharded"]["kind"] for name in ("weights", "tables", "terms")}
    assert kinds == {"weights": "WeightedLogits", "tables": "TableLogits", "terms": "TermLogits"}


def test_a_device_holds_its_part_alone(runs):
    """Sites, neighbours, fields and places of eight devices: an eighth on each, but for a few scalars."""
    assert [runs[f"weights 1 {n} sharded"]["sites"] for n in (1, 2, 8)] == [256, 128, 32]
    assert runs["weights 2 8 sharded"]["sites"] == 64  # a chain has four devices
    whole, part = runs["weights 1 1 sharded"]["bytes"], runs["weights 1 8 sharded"]["bytes"]
    assert part < whole / 8 + 64


def test_what_cannot_be_sharded_is_refused():
    dense = tz.Target(lambda t: jnp.sum(t.astype(float)) ** 2, tz.binary(4))
    with pytest.raises(UnsupportedError, match="were not read"):
        tz.samplers.REGISTRY["coloured_gibbs"].prepare(dense, shard_sites=True)
    chain = tz.Target(lambda t: 0.5 * jnp.sum((t[1:] * t[:-1]).astype(float)), tz.binary(6))
    kernel = tz.samplers.coloured_gibbs(shard_sites=True)
    with pytest.raises(OptionError, match="inside another sampler"):
        tz.sample(chain, seed=0, sampler=tz.samplers.parallel_tempering(kernel=kernel), progress="off")
    with pytest.raises(OptionError, match="shard_sites"):
        tz.sample(chain, seed=0, sampler=tz.samplers.coloured_gibbs(shard_sites=2), progress="off")
