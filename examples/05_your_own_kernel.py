"""A kernel, a loss, an admission gate and an execution of one's own: small classes, registered nowhere.

python examples/05_your_own_kernel.py
"""

import jax
import jax.numpy as jnp

import memdsl as md
from memdsl.testing import check_kernel, check_memory


class Cauchy(md.AbstractKernel):
    """`1 / (1 + |k - q|^2 / scale^2)`: a bump with long tails."""

    scale: md.Number = 1.0  # a Number may be a float, Learned(...), Knob(...): no code for it here
    nonnegative = True
    stationary_value = 1.0  # of kernel(k, k): declared, and checked below

    def __call__(self, k, q):
        return 1 / (1 + jnp.sum((k - q) ** 2) / self.scale**2)


class LogCosh(md.AbstractLoss):
    """`sum log cosh(prediction - target)`: squared near 0, and no steeper than 1 beyond."""

    def gradient(self, prediction, target):
        return jnp.tanh(prediction - target)


class NewOrWrong(md.AbstractAdmission):
    """Lets a pair in where its key is new, or where the memory is wrong about it."""

    distance: float = 0.3
    error: float = 0.5

    def admits(self, arrival):
        return (arrival.distance > self.distance) | (arrival.surprise > self.error)


# The laws of a kernel, on samples: symmetry, a positive Gram matrix, and that its claims are true.
check_kernel(Cauchy(scale=0.5))

# The parts meet all others. This memory takes robust steps, and only at what it does not know yet.
robust = md.Memory(
    Cauchy(scale=0.3),
    md.Descent(LogCosh(), rate=0.2),
    NewOrWrong(),
    md.Budget(60, md.Smallest(), md.AddToNearest()),
)
print("checked against the definition:", *check_memory(robust))

x = jnp.linspace(-3, 3, 400)[:, None]
order = jax.random.permutation(jax.random.key(0), 400)
wrong = jnp.where(jax.random.uniform(jax.random.key(1), x.shape) < 0.1, 5.0, 0.0)
print("\na sine learned from 400 values, a tenth of them wrong by 5")
for name, memory in {"log cosh": robust, "squared": robust.replace(write=md.Delta(0.2))}.items():
    state = md.empty(memory, 1, 1)
    state, _ = md.run(memory, state, x[order], (jnp.sin(2 * x) + wrong)[order])
    error = jnp.mean(jnp.abs(md.evaluate(memory, state, x) - jnp.sin(2 * x)))
    print(f"  {name:10}mean error {error:.2f}, {state.counts.admitted} pairs let in, 60 kept")


# An execution is a rule: when it is legal, what it costs, and how it runs. This one is for matrices
# that only add up: all their states are one cumulative sum, cut where documents start.
def running_sum(memory, state, inputs):
    features = jax.vmap(memory.kernel.features)
    atoms = memory.write.rate * features(inputs.keys)[:, :, None] * inputs.values[:, None, :]
    starts = jnp.zeros(inputs.time, bool) if inputs.starts is None else inputs.starts
    count = inputs.time if inputs.active is None else jnp.sum(inputs.active)

    def join(early, late):
        starts = late[0][:, None, None]
        return early[0] | late[0], jnp.where(starts, late[1], early[1] + late[1])

    first = jnp.zeros(1, bool), state.matrix[None]
    rows = jax.tree.map(lambda *parts: jnp.concatenate(parts), first, (starts, atoms))
    _, matrices = jax.lax.associative_scan(join, rows)
    answers = jnp.einsum("tf,tfv->tv", features(inputs.queries), matrices[1:])
    return type(state)(matrices[-1], None, state.count + count), memory.read.scale * answers


def only_adds(m):
    plain = isinstance(m.write, md.Hebb) and isinstance(m.read, md.Evaluate) and not md.signals(m)
    return plain and m == md.Memory(m.kernel, m.write, read=m.read)


mine = md.Rule(
    "matrix",
    "running sum",
    requires=(
        md.Requirement(lambda m: md.is_finite(m.kernel), "the kernel has no finite features"),
        md.Requirement(only_adds, "more than a sum: it forgets, corrects, divides or chooses"),
    ),
    cost=lambda m, dims, training: md.Cost(flops=0, floats=0, steps=1),  # a boast, to be chosen
    run=running_sum,
    note="one cumulative sum",
)
rules = (*md.RULES, mine)
hebb = md.Memory(md.Polynomial(2), md.Hebb(0.5))
print("\nchecked: ", *check_memory(hebb, rules=rules), sep="\n  ")
print("chosen: ", md.plan(hebb, md.Dims(key=3, value=2, time=100), rules=rules).name)
rejected = md.plan(robust, md.Dims(key=3, value=2), rules=rules).choices[0].rejected
print("not for the other, because", *next(why for rule, why in rejected if rule == mine)[:1])
