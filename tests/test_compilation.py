"""Where programs and loose operations run, on two host devices that stand for a host and an accelerator."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from terrazzo.runtime.compilation import OPTIONS

PROGRAM = """
import json
import jax, jax.numpy as jnp, numpy as np
import terrazzo as tz
from terrazzo.runtime.background import compile_in_background
from terrazzo.runtime.compilation import jit, loose_on

host, device = jax.devices()
where = lambda x: next(iter(x.devices())).id
double = jit(lambda x: 2.0 * x)
seen = []

def ahead():
    seen.append(where(jnp.ones(2) + 1.0))
    seen.append(where(double(jnp.ones(2))))
    yield

def sampled():
    log_prob = lambda t: 0.3 * jnp.sum(t[1:] * t[:-1])
    options = {"seed": 0, "draws": 20, "warmup": 5, "chains": 2, "sampler": "gibbs", "progress": "off"}
    with tz.use_devices([device]):
        return np.asarray(tz.sample(log_prob, tz.binary(6), **options).codes)

plain = sampled()
with loose_on(host, device):
    x = jnp.ones(3)
    y = double(x)
    found = [where(x), where(y), where(x + y), bool((x + y == 3.0).all())]
    with compile_in_background(ahead()):
        pass
    is_same = bool((sampled() == plain).all())
after = where(jnp.ones(1) + 1.0)
print(json.dumps({"found": found, "seen": seen, "is_same": is_same, "after": after, "compiled": double.num_compiled()}))
"""


def test_loose_operations_run_on_the_host_and_programs_on_the_device():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    found = json.loads(out.stdout.splitlines()[-1])
    assert found["found"] == [0, 1, 0, True]
    assert found["seen"] in ([], [0], [0, 1])  # the thread may not have begun
    assert found["is_same"]
    assert found["after"] == 0
    assert found["compiled"] <= 2  # for three numbers and for two: not once more for the thread


@pytest.mark.parametrize("name", OPTIONS)
def test_xla_knows_all_options(name):
    """An option of a GPU is read wherever a program is compiled; one that this version does not know is an error."""
    turn = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, x: x + i, 0), compiler_options=OPTIONS[name])
    assert turn(jnp.asarray(4, jnp.int32)) == 6
