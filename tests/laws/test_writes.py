"""Writes: the delta rule is one descent step, a ridge write is the minimiser, and what lies between."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md

from ..helpers import close, inputs, KEY, law, random, TIME, VALUE


KERNELS = [md.Dot(), md.RBF(), md.Exp(0.3 * md.Dot()), md.Polynomial(2).pullback(md.L2Norm())]
GATES = [md.Keep(), md.Decay(0.8), md.ValueDecay(0.7)]

kernels = pytest.mark.parametrize("kernel", KERNELS, ids=repr)
gates = pytest.mark.parametrize("gate", GATES, ids=repr)


def denote(memory: Any, made: dict[str, Any], **changes: Any) -> Any:
    return md.denote(memory, **{**made, **changes})


def gram(kernel: Any, keys: Any, queries: Any) -> np.ndarray:
    return np.asarray([[kernel(k, q) for q in queries] for k in keys])


@kernels
@gates
@law
def test_hebb_descends_inner_and_delta_descends_squared(kernel: Any, gate: Any, seed: int):
    made = inputs(md.Memory(kernel), seed)

    def same(a: Any, b: Any, **parts: Any) -> None:
        close(
            denote(md.Memory(kernel, a, gate, **parts), made),
            denote(md.Memory(kernel, b, gate, **parts), made),
        )

    same(md.Hebb(0.3), md.Descent(md.Inner(), rate=0.3))
    same(md.Delta(0.3), md.Descent(md.Squared(), rate=0.3))
    same(md.Delta(0.3, recall="previous"), md.Descent(rate=0.3, recall="previous"))
    same(md.Delta(0.3), md.Descent(md.Huber(1e6), rate=0.3))
    same(md.Descent(md.Power(2.0), rate=0.1), md.Delta(0.2))  # its gradient is twice the error
    if kernel.is_nonnegative() and not isinstance(gate, md.ValueDecay):
        same(md.Delta(0.3), md.Descent(rate=0.3), read=md.Normalised(prior=0.5))


@kernels
@law
def test_hebb_is_free_of_order_and_ridge_too(kernel: Any, seed: int):
    order = np.random.default_rng(seed).permutation(TIME)
    made = inputs(md.Memory(kernel), seed)
    shuffled = {**made, "keys": made["keys"][order], "values": made["values"][order]}
    for write in (md.Hebb(0.5), md.Ridge(0.7)):
        memory = md.Memory(kernel, write)
        close(denote(memory, made)[-1], denote(memory, shuffled, queries=made["queries"])[-1])
    delta = md.Memory(kernel, md.Delta(0.5))
    gap = denote(delta, made)[-1] - denote(delta, shuffled, queries=made["queries"])[-1]
    is_sorted = bool(np.all(order == np.arange(TIME)))
    assert is_sorted or float(jnp.max(jnp.abs(gap))) > 1e-6  # the boundary of the law


@law
def test_delta_recalls_the_latest_pair(seed: int):
    """With step 1 and kernel(k, k) = 1; with step 1 / kernel(k, k) whatever the kernel."""
    for kernel in (md.RBF(), md.Laplace(), md.Dot().pullback(md.L2Norm(epsilon=0.0))):
        for gate in GATES:
            memory = md.Memory(kernel, md.Delta(1.0), gate)
            made = inputs(memory, seed)
            close(denote(memory, made, queries=made["keys"]), made["values"])
    memory = md.Memory(md.Polynomial(2), md.Delta(1.0, normalise=1e-12))
    made = inputs(memory, seed)
    close(denote(memory, made, queries=made["keys"]), made["values"])


@kernels
@law
def test_kernel_delta_is_a_triangular_solve(kernel: Any, seed: int):
    """`(I + diag(b) tril(G * K, -1)) U = diag(b) V`, the decays G between two tokens."""
    memory = md.Memory(kernel, md.Delta(md.FromInput("sigmoid")), md.Decay(md.FromInput("sigmoid")))
    made = inputs(memory, seed)
    logs, rate = np.cumsum(made["log_decay"]), np.asarray(made["rate"])
    fade = np.exp(np.minimum(logs[:, None] - logs[None, :], 0))
    mixed = np.tril(fade * gram(kernel, made["keys"], made["keys"]), -1)
    u = np.linalg.solve(np.eye(TIME) + rate[:, None] * mixed, rate[:, None] * made["values"])
    reads = np.tril(fade * gram(kernel, made["queries"], made["keys"]))
    close(denote(memory, made), reads @ u)


@kernels
@law
def test_several_steps_are_one_longer_step(kernel: Any, seed: int):
    """m steps of size b on one pair are one of size `(1 - (1 - b K)^m) / K`, K = kernel(k, k)."""
    made = inputs(md.Memory(kernel), seed)
    norms = np.asarray([kernel(k, k) for k in made["keys"]])
    several = md.Memory(kernel, md.Descent(md.Squared(), rate=0.1, steps=3), md.Decay(0.9))
    once = md.Memory(kernel, md.Delta(md.FromInput("sigmoid")), md.Decay(0.9))
    close(denote(several, made), denote(once, made, rate=(1 - (1 - 0.1 * norms) ** 3) / norms))


@kernels
@law
def test_the_implicit_step_corrects_by_the_error_after_it(kernel: Any, seed: int):
    memory = md.Memory(kernel, md.Delta(0.7, implicit=True))
    made = inputs(memory, seed)
    before = denote(memory, made, queries=None)
    after = denote(memory, made, queries=made["keys"])
    norms = jnp.stack([kernel(k, k) for k in made["keys"]])
    close(after - before, 0.7 * norms[:, None] * (made["values"] - after))


@law
def test_recall_says_which_function_is_corrected(seed: int):
    """Both orders, written out for a matrix."""
    for recall in ("decayed", "previous"):
        memory = md.Memory(md.Dot(), md.Delta(0.6, recall=recall), md.Decay(0.7))
        made, matrix, rows = inputs(memory, seed), np.zeros((KEY, VALUE)), []
        for t in range(TIME):
            k, v, q = (np.asarray(made[name][t]) for name in ("keys", "values", "queries"))
            asked, matrix = matrix, 0.7 * matrix
            asked = matrix if recall == "decayed" else asked
            matrix = matrix + 0.6 * np.outer(k, v - asked.T @ k)
            rows.append(matrix.T @ q)
        close(denote(memory, made), np.stack(rows))


@law
def test_keys_and_gates_of_their_own(seed: int):
    """`S <- S + k (w v - S'(b e))`, and diagonal plus rank one with separate keys, for a matrix."""
    channels = md.FromInput("sigmoid", per="key_channel")
    gated = md.Memory(
        md.Dot(),
        md.Delta(erase="own", erase_gate=channels, write_gate=md.FromInput("sigmoid")),
        md.DiagonalDecay(channels),
    )
    made, matrix, rows = inputs(gated, seed), np.zeros((KEY, VALUE)), []
    for t in range(TIME):
        k, v, q, e = (np.asarray(made[n][t]) for n in ("keys", "values", "queries", "erase_keys"))
        matrix = np.exp(made["log_decay"][t])[:, None] * matrix
        recalled = matrix.T @ (np.asarray(made["erase_gate"][t]) * e)
        matrix = matrix + np.outer(k, float(made["write_gate"][t]) * v - recalled)
        rows.append(matrix.T @ q)
    close(denote(gated, made), np.stack(rows))

    dplr = md.Memory(
        md.Dot(), md.Delta(0.6, erase="own", remove="own", recall="previous"), md.Decay(0.8)
    )
    made, matrix, rows = inputs(dplr, seed), np.zeros((KEY, VALUE)), []
    for t in range(TIME):
        names = ("keys", "values", "queries", "erase_keys", "remove_keys")
        k, v, q, e, r = (np.asarray(made[n][t]) for n in names)
        recalled = matrix.T @ e
        matrix = 0.8 * matrix + 0.6 * np.outer(k, v) - 0.6 * np.outer(r, recalled)
        rows.append(matrix.T @ q)
    close(denote(dplr, made), np.stack(rows))


@kernels
@law
def test_a_delta_on_atoms_is_gradient_descent_on_their_coefficients(kernel: Any, seed: int):
    memory = md.Memory(kernel, md.Delta(0.4, on="atoms", normalise=0.1), md.Decay(0.9))
    made = inputs(memory, seed)
    keys, c, w, rows = made["keys"], np.zeros((TIME, VALUE)), np.zeros(TIME), []
    for t in range(TIME):
        w = 0.9 * w
        k = np.asarray([kernel(key, keys[t]) for key in keys])
        error = np.asarray(made["values"][t]) - (w * k) @ c
        w[t] = 1
        h = w * k
        c = c + 0.4 / (0.1 + h @ h) * np.outer(h, error)
        rows.append((w * [kernel(key, made["queries"][t]) for key in keys]) @ c)
    close(denote(memory, made), np.stack(rows))


@kernels
@law
def test_momentum_and_windows_by_gram_matrices(kernel: Any, seed: int):
    for momentum, window, loss in (
        (0.6, 1, md.Squared()),
        (None, 3, md.Huber(0.5)),
        (0.5, 2, md.Squared()),
    ):
        write = md.Descent(loss, rate=0.2, momentum=momentum, window=window)
        memory = md.Memory(kernel, write, md.Decay(0.8))
        made = inputs(memory, seed)
        k = gram(kernel, made["keys"], made["keys"])
        reads = gram(kernel, made["queries"], made["keys"])
        c, s, rows = np.zeros((TIME, VALUE)), np.zeros((TIME, VALUE)), []
        for t in range(TIME):
            c, step = 0.8 * c, np.zeros((TIME, VALUE))
            for j in range(max(0, t - window + 1), t + 1):
                step[j] = -0.2 * np.asarray(loss.gradient(jnp.asarray(k[j] @ c), made["values"][j]))
            s = (momentum or 0) * s + step
            c = c + s
            rows.append(reads[t] @ c)
        close(denote(memory, made), np.stack(rows))


@kernels
@law
def test_ridge_is_the_minimiser_of_its_problem(kernel: Any, seed: int):
    memory = md.Memory(kernel, md.Ridge(0.6, rate=md.FromInput("sigmoid")), md.Decay(0.8))
    made = inputs(memory, seed)
    k = gram(kernel, made["keys"], made["keys"])
    reads = gram(kernel, made["queries"], made["keys"])
    weights = np.asarray(made["rate"]) * 0.8 ** (TIME - 1 - np.arange(TIME))
    u = np.linalg.solve(k + np.diag(0.6 / weights), made["values"])
    close(denote(memory, made)[-1], reads[-1] @ u)

    # and no small step away from it makes the sum smaller
    def objective(c: np.ndarray) -> float:
        fit = weights @ np.sum((k @ c - made["values"]) ** 2, axis=1)
        return float(fit + 0.6 * np.trace(c.T @ k @ c))

    for step in np.random.default_rng(seed).standard_normal((5, TIME, VALUE)):
        assert objective(u + 1e-3 * step) >= objective(u) - 1e-12


@law
def test_ridge_interpolates_as_its_strength_vanishes(seed: int):
    made = inputs(md.Memory(md.RBF(scale=0.7)), seed)
    memory = md.Memory(md.RBF(scale=0.7), md.Ridge(1e-10))
    answers = md.denote(memory, made["keys"], made["values"], jnp.roll(made["keys"], -1, 0))
    close(answers[-1], made["values"][0], 1e-4)


@law
def test_ridge_by_channel_is_the_solve_of_the_matrix(seed: int):
    strength = md.Learned(1.0, per="key_channel")
    memory = md.Memory(md.Dot(), md.Ridge(strength, rate=md.FromInput("sigmoid")), md.Decay(0.9))
    made, h, b, rows = inputs(memory, seed), np.zeros((KEY, KEY)), np.zeros((KEY, VALUE)), []
    for t in range(TIME):
        k, v, q = (np.asarray(made[name][t]) for name in ("keys", "values", "queries"))
        h = 0.9 * h + float(made["rate"][t]) * np.outer(k, k)
        b = 0.9 * b + float(made["rate"][t]) * np.outer(k, v)
        rows.append(b.T @ np.linalg.solve(h + np.diag(made["strength"]), q))
    close(denote(memory, made), np.stack(rows))


@kernels
@law
def test_gauss_seidel_goes_from_delta_to_ridge(kernel: Any, seed: int):
    """One sweep is Delta with step `1 / (kernel(k, k) + strength)`, many are the exact solve."""
    made = inputs(md.Memory(kernel), seed)

    def swept(sweeps: int) -> Any:
        return denote(md.Memory(kernel, md.Ridge(0.9, solver=md.GaussSeidel(sweeps))), made)

    norms = jnp.stack([kernel(k, k) for k in made["keys"]])
    delta = md.Memory(kernel, md.Delta(md.FromInput("sigmoid")))
    close(swept(1), denote(delta, made, rate=1 / (norms + 0.9)))
    exact = denote(md.Memory(kernel, md.Ridge(0.9)), made)
    errors = [float(jnp.max(jnp.abs(swept(n) - exact))) for n in (1, 4, 60)]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-5


@law
def test_repeated_pairs_are_tokens_without_decay(seed: int):
    """n pairs a token are n tokens, of which the first fades and the last is read."""
    for write in (
        md.Delta(md.FromInput("sigmoid")),
        md.Hebb(0.5),
        md.Descent(md.Huber(0.5), rate=0.3),
    ):
        memory = md.Memory(md.RBF(), write.times(2), md.Decay(0.7))
        made = inputs(memory, seed)
        log_decay = jnp.where(jnp.arange(2 * TIME) % 2 == 0, np.log(0.7), 0.0)
        once = md.Memory(md.RBF(), write, md.Decay(md.FromInput("sigmoid")))
        queries = jnp.repeat(made["queries"], 2, axis=0)
        spread = denote(once, made, queries=queries, log_decay=log_decay)
        close(denote(memory, made), spread[1::2])


@law
def test_reweight_steps_down_the_gradient_of_a_normalised_read(seed: int):
    """The change of the answer at the key, to first order in the rate, is minus the tangent kernel
    `kappa(k, k) / D^2 (spread I + w s s^T)` times g (w = 1 for exact and 0 for frozen)."""
    kernel, prior, rate = md.Exp(0.5 * md.Dot()), 0.7, 1e-6
    keys, g = 0.5 * random(seed, 4, KEY), random(seed + 1, 4, VALUE)
    start = 0.2 * random(seed + 2, 3, VALUE)
    for negative, share in (("exact", 1.0), ("damped", 1.0), ("frozen", 0.0)):
        for spread in (1.0, 1.7):
            weights = np.asarray([kernel(k, keys[3]) for k in keys])
            memory = md.Memory(
                kernel,
                md.Reweight(md.FromInput("sigmoid"), spread=spread, negative=negative),
                read=md.Normalised(prior=prior),
            )
            rates = jnp.asarray([1.0, 1.0, 1.0, rate])
            signals = jnp.concatenate([start, g[3:]])
            before = md.denote(memory, keys, signals, None, rate=rates)[3]
            after = md.denote(memory, keys, signals, keys, rate=rates)[3]
            mass = _mass(memory, keys[:3], signals[:3], keys[3])
            tangent = (
                weights[3] / mass**2 * (spread * np.eye(VALUE) + share * np.outer(before, before))
            )
            close((after - before) / rate, -tangent @ g[3], 1e-4)


def _mass(memory: Any, keys: Any, signals: Any, query: Any) -> float:
    """D at a query, prior included, by the definition of `Reweight` written out."""
    kernel, prior, spread = memory.kernel, memory.read.prior, memory.write.spread
    atoms: list[tuple[Any, Any, Any]] = []
    for k, g in zip(keys, signals, strict=True):
        n = sum((w * kernel(key, k) for key, w, _ in atoms), jnp.zeros(VALUE))
        d = prior + sum(m * kernel(key, k) for key, _, m in atoms)
        mass = 0.0 if memory.write.negative == "frozen" else g @ (n / d) / d
        if memory.write.negative == "damped":  # 0.9 of d stays
            mass = max(mass, -0.1 * d / kernel(k, k))
        atoms.append((k, -spread * g / d, mass))
    return float(prior + sum(m * kernel(key, query) for key, _, m in atoms))


@law
def test_frozen_reweighting_is_a_kernel_layer(seed: int):
    """From a prior of 1, `frozen` never moves the mass: it is Hebb on -spread g."""
    kernel = md.Exp(0.5 * md.Dot())
    frozen = md.Memory(kernel, md.Reweight(0.5, spread=1.3), read=md.Normalised(prior=1.0))
    made = inputs(frozen, seed)
    hebb = md.Memory(kernel, md.Hebb(0.5))
    close(denote(frozen, made), denote(hebb, made, values=-1.3 * made["values"]))


@law
def test_reweighting_by_a_loss_is_reweighting_by_its_gradients(seed: int):
    """The error of every pair is of the answer at its key, before it is written."""
    memory = md.Memory(
        md.Exp(0.5 * md.Dot()),
        md.Reweight(0.4, negative="exact", loss=md.Squared()),
        md.Decay(0.9),
        read=md.Normalised(prior=1.0),
    )
    made = inputs(memory, seed)
    previous = memory.replace(gate=md.Keep())
    errors = denote(previous, made, queries=None) - made["values"]
    given = previous.replace(write=previous.write.replace(loss=None))
    close(denote(previous, made), denote(given, made, values=errors))
    assert np.max(np.abs(denote(memory, made) - denote(previous, made))) > 1e-6


@law
def test_which_reweighting_keeps_weights_from_being_negative(seed: int):
    """The error opposes the answer, which is where the exact weight is below 0."""
    answer, mass = random(seed, VALUE), jnp.asarray(1.5)
    g = -answer + 0.1 * random(seed + 1, VALUE) * jnp.abs(answer)
    recalled, size = md.spec._write.Recalled(mass * answer, mass, answer), jnp.linalg.norm(g)

    def weight(negative: str) -> float:
        write = md.Reweight(0.3, negative=negative, margin=0.05)
        return float(write.coefficient(g, recalled, jnp.asarray(1.0))[1])

    close(weight("exact"), 0.3 / 1.5 * g @ answer)
    assert weight("exact") < 0
    assert weight("frozen") == weight("clip") == 0
    close(weight("gauge"), 0.3 / 1.5 * 0.05 * size)
    close(weight("centred"), 0.3 / 1.5 * 0.05 * size)
