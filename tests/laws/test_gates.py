"""Gates are a monoid that acts linearly on what is stored."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import memdsl as md
from memdsl.spec._facts import retention

from ..helpers import close, GATES, inputs, KEY, law, random, TIME, VALUE


FORGETS = [n for n in sorted(GATES) if n not in ("novelty", "coherence", "surprise", "never")]
PLAIN = {
    "keep": md.Keep(),
    "half": md.Decay(0.5),
    "quarter": md.Decay(0.25),
    "diagonal": md.DiagonalDecay(0.5),
    "of_values": md.ValueDecay(0.25),
    "reset": md.Reset(),
    "novelty": md.Novelty(0.5),
    "surprise": md.Surprise(1.0),
    "always": md.Always(),
}


def denote(memory: Any, made: dict[str, Any], **changes: Any) -> Any:
    return md.denote(memory, **{**made, **changes})


@pytest.mark.parametrize("names", list(itertools.product(sorted(PLAIN), repeat=3)), ids="-".join)
def test_composition_is_associative(names: tuple[str, str, str]):
    a, b, c = (PLAIN[name] for name in names)
    left, right = (a @ b) @ c, a @ (b @ c)
    assert left == right and hash(left) == hash(right)


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_keep_and_always_are_units(name: str):
    gate = PLAIN[name]
    same = md.Keep() if name == "always" else gate
    assert md.Keep() @ gate == gate @ md.Keep() == same
    assert md.Always() @ gate == gate @ md.Always() == same


@law
def test_decays_multiply(seed: int):
    assert md.Decay(0.5) @ md.Decay(0.25) == md.Decay(0.125)
    a = md.FromInput("sigmoid")
    memory = md.Memory(md.Dot(), md.Delta(0.5), md.Decay(a) @ md.Decay(a))
    made = inputs(memory, seed)
    logs = {"log_decay": made.pop("log_decay")}
    once = md.Memory(md.Dot(), md.Delta(0.5), md.Decay(a))
    close(denote(memory, made, **logs), denote(once, made, **logs))  # the signal is the product
    plain = md.Memory(md.Dot(), md.Delta(0.5), md.Decay(0.9) @ md.Decay(0.7))
    close(denote(plain, made), denote(once, made, log_decay=jnp.full(TIME, np.log(0.63))))


@pytest.mark.parametrize("name", FORGETS)
@pytest.mark.parametrize("kernel", [md.Dot(), md.Polynomial(2)], ids=["dot", "polynomial"])
@law
def test_forgetting_is_linear(name: str, kernel: Any, seed: int):
    memory = md.Memory(kernel, gate=GATES[name])
    made = inputs(memory, seed)
    a, b = random(seed, TIME, VALUE), random(seed + 1, TIME, VALUE)
    left = denote(memory, made, values=2 * a - 3 * b)
    right = 2 * denote(memory, made, values=a) - 3 * denote(memory, made, values=b)
    if retention(memory) is None:
        close(left, right)
    else:  # the boundary of the law
        assert float(jnp.max(jnp.abs(left - right))) > 1e-6


@law
def test_diagonal_decays_of_one_number_are_a_decay(seed: int):
    made = inputs(md.Memory(md.Dot()), seed)
    for write in (md.Hebb(), md.Delta(0.5), md.Descent(rate=0.3, momentum=0.5)):
        answers = [
            denote(md.Memory(md.Dot(), write, gate), made)
            for gate in (md.Decay(0.7), md.DiagonalDecay(0.7), md.ValueDecay(0.7))
        ]
        close(answers[0], answers[1])
        close(answers[0], answers[2])


@law
def test_channels_fade_by_their_own_decay(seed: int):
    """A diagonal decay of a Hebbian matrix is, channel by channel, a weighted sum."""
    memory = md.Memory(md.Dot(), gate=GATES["diagonal"] @ GATES["of_values"])
    made = inputs(memory, seed)
    names = sorted(name for name in made if "decay" in name)
    of_keys, of_values = (made[n] for n in sorted(names, key=lambda n: -made[n].shape[1]))
    matrix, rows = np.zeros((KEY, VALUE)), []
    for t in range(TIME):
        matrix = np.exp(of_keys[t])[:, None] * matrix * np.exp(of_values[t])[None, :]
        matrix = matrix + np.outer(made["keys"][t], made["values"][t])
        rows.append(matrix.T @ made["queries"][t])
    close(denote(memory, made), np.stack(rows))


@pytest.mark.parametrize("kernel", [md.Dot(), md.RBF(), md.Exp(md.Dot())], ids=repr)
@law
def test_reset_is_a_decay_of_zero_and_stops_what_came_before(kernel: Any, seed: int):
    plain = md.Memory(kernel, md.Delta(0.5))
    made = inputs(plain, seed)
    starts = jnp.arange(TIME) == 3
    reset = denote(plain.replace(gate=md.Reset()), made, starts=starts)
    log_decay = jnp.where(starts, -jnp.inf, 0.0)
    decayed = plain.replace(gate=md.Decay(md.FromInput("sigmoid")))
    close(reset, denote(decayed, made, log_decay=log_decay))
    poison = {n: a.at[:3].set(jnp.nan) for n, a in made.items()}
    close(denote(plain, poison, starts=starts)[3:], reset[3:])


@pytest.mark.parametrize("kernel", [md.RBF(), md.Dot()], ids=repr)
@law
def test_admission_gates_must_all_agree(kernel: Any, seed: int):
    made = inputs(md.Memory(kernel), seed)

    def kept(gate: Any) -> np.ndarray:
        """Which pairs were let in: values are one-hot, and nothing fades or corrects."""
        memory = md.Memory(md.Exp(md.Dot()), gate=gate, read=md.Evaluate())
        values = jnp.eye(TIME)
        return np.asarray(denote(memory, made, values=values)[-1]) != 0

    novel, surprising = md.Novelty(1.5), md.Surprise(1.5)
    assert np.all(kept(md.Always())) and not np.any(kept(md.Never()))
    assert np.all(kept(md.Novelty(-1.0))) and not np.any(kept(md.Novelty(float("inf"))))
    assert np.all(kept(md.Surprise(0.0)))
    assert kept(novel)[0]
    close(kept(novel @ md.Always()), kept(novel))
    assert not np.any(kept(novel @ md.Never()))
    assert np.all(kept(novel @ surprising) <= 1)


@law
def test_novel_keys_are_apart(seed: int):
    """What is admitted is separated by the threshold, and what is not is near an admitted one."""
    memory = md.Memory(md.RBF(scale=0.01), gate=md.Novelty(1.0), read=md.Evaluate())
    made = inputs(memory, seed, time=8)
    answers = denote(memory, made, values=jnp.eye(8), queries=made["keys"])
    kept = np.asarray([answers[t, t] > 0.5 for t in range(8)])
    keys = np.asarray(made["keys"])
    distance = np.linalg.norm(keys[:, None] - keys[None, :], axis=-1)
    for t in range(8):
        earlier = [distance[t, s] for s in range(t) if kept[s]]
        assert kept[t] == (min(earlier, default=np.inf) > 1.0)


@law
def test_keys_that_shrink_are_a_diagonal_decay_of_a_matrix(seed: int):
    channels = md.FromInput("sigmoid", per="key_channel")
    for write in (md.Hebb(), md.Delta(0.5)):
        memory = md.Memory(md.Dot().pullback(md.Silu()), write, md.KeyDecay(channels))
        made = inputs(memory, seed)
        close(denote(memory, made), denote(memory.replace(gate=md.DiagonalDecay(channels)), made))


@law
def test_a_householder_gate_of_a_matrix_erases_what_is_at_its_key(seed: int):
    """`S <- (I - rate w w^T) S + k v^T` is a diagonal plus rank one with keys of its own."""
    memory = md.Memory(md.Dot(), md.Hebb(), md.Householder(0.6))
    made = inputs(memory, seed)
    rank_one = md.Memory(md.Dot(), md.Delta(1.0, recall="previous", erase="own", remove="own"))
    removed = 0.6 * made["erase_keys"]
    close(denote(memory, made), denote(rank_one, made, remove_keys=removed))


@law
def test_attention_to_moved_keys_is_attention_to_the_keys_moved_by_hand(seed: int):
    """PaTH: the logit of token j at token i is `q_i . H_i ... H_(j+1) k_j`."""
    memory = md.Memory(
        md.Exp(md.Dot()), gate=md.Householder(md.FromInput("sigmoid")), read=md.Normalised()
    )
    made = inputs(memory, seed)
    answers = denote(memory, made)
    moved = np.zeros((0, KEY))
    for i in range(TIME):
        w = np.asarray(made["erase_keys"][i])
        moved = moved @ (np.eye(KEY) - float(made["rate"][i]) * np.outer(w, w))
        moved = np.concatenate([moved, made["keys"][i : i + 1]])
        weights = np.exp(moved @ np.asarray(made["queries"][i]))
        close(answers[i], weights @ np.asarray(made["values"][: i + 1]) / weights.sum())


@law
def test_a_key_that_is_nothing_coheres_with_nothing(seed: int):
    """A feature that makes a key 0 makes it no copy of another, here and in a buffer."""
    memory = md.Memory(md.Dot().pullback(md.Relu()), md.Hebb(), md.Coherence(0.5), md.Budget(TIME))
    made = inputs(memory, seed)
    made["keys"] = made["keys"].at[1].set(-1.0).at[3].set(-2.0)
    wanted = md.denote(memory, **made)
    state = md.empty(memory, KEY, VALUE, dtype=jnp.float64)
    state, answers = md.run(memory, state, **made)
    close(answers, wanted)
    assert int(state.counts.admitted) >= 2
