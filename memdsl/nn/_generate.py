"""Sampling from a language model: the prompt at once, then one token after the other."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._errors import SpecError
from .._types import checked
from ._base import AbstractModule


@checked
def generate(
    model: AbstractModule,
    prompt: Int[Array, " prompt"],
    steps: int,
    *,
    key: PRNGKeyArray,
    temperature: float | Float[Array, ""] = 1.0,
    top_k: int | None = None,
) -> Int[Array, " steps"]:
    r"""Continues a prompt by tokens drawn from the model, one compiled program.

    $$p(\text{token}) = \mathrm{softmax}(\text{logits} / \text{temperature})$$

    The prompt is read in one piece, and each further token by `model.step`: the state is as large as
    the memory's, whatever the length. Batch it with `jax.vmap` over prompts and keys.

    **Arguments:**

    - `model`: from tokens `[time]` to logits `[time, vocabulary]`, as `Embed … >> Unembed` is.
    - `prompt`: at least one token.
    - `steps`: how many tokens to draw. Another number is another program.
    - `key`: of the draws.
    - `temperature`: 0 takes the most likely token. It may be swept without compiling anew.
    - `top_k`: draws among so many of the most likely tokens only.

    **Returns:** the tokens drawn, `[steps]`, int32, without the prompt.

    **Raises:** `SpecError` for an empty prompt, or a `steps` or `top_k` below 1.

    ??? example

        ```python
        >>> import jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> block = md.Residual(md.Norm() >> md.Layer(md.zoo.delta_net(), heads=2))
        >>> spec = md.Embed(10) >> block >> md.Norm() >> md.Unembed()
        >>> model = md.build(spec, md.Dims(model=8), key=jax.random.key(0))
        >>> tokens = md.generate(model, jnp.array([1, 2, 3]), 5, key=jax.random.key(1), top_k=4)
        >>> tokens.shape
        (5,)

        ```
    """
    _check(prompt, top_k)
    if steps < 1:
        raise SpecError(f"{steps} steps draw nothing.", instead="steps=1 or more.")
    return _generate(model, prompt, steps, key, jnp.asarray(temperature, jnp.float32), top_k)


@eqx.filter_jit
def _generate(
    model: Any, prompt: Array, steps: int, key: Array, temperature: Array, top_k: int | None
) -> Array:
    state, logits = model.prefill(prompt, model.init(len(prompt) + steps))
    first = _draw(logits[-1], key, temperature, top_k)

    def body(carry: tuple[Any, Array], number: Array) -> tuple[tuple[Any, Array], Array]:
        state, token = carry
        state, logits = model.step(state, token)
        drawn = _draw(logits, jax.random.fold_in(key, number), temperature, top_k)
        return (state, drawn), token

    (_, last), tokens = jax.lax.scan(body, (state, first), jnp.arange(1, steps))
    return jnp.concatenate([tokens, last[None]])


@checked
def stream(
    model: AbstractModule,
    prompt: Int[Array, " prompt"],
    *,
    key: PRNGKeyArray,
    steps: int | None = None,
    temperature: float | Float[Array, ""] = 1.0,
    top_k: int | None = None,
) -> Iterator[int]:
    """The tokens of `generate`, each as soon as it is drawn; the same key gives the same tokens.

    **Arguments:**

    - `model`, `prompt`, `key`, `temperature`, `top_k`: as of `generate`.
    - `steps`: how many tokens; `None` goes on for ever, which a buffer of all tokens cannot.

    **Returns:** an iterator over tokens.

    **Raises:** `SpecError` as `generate`.

    ??? example

        ```python
        >>> import itertools, jax, jax.numpy as jnp
        >>> import memdsl as md
        >>> block = md.Residual(md.Norm() >> md.Layer(md.zoo.delta_net(), heads=2))
        >>> model = md.build(md.Embed(10) >> block >> md.Unembed(), md.Dims(8), key=jax.random.key(0))
        >>> tokens = md.stream(model, jnp.array([1, 2]), key=jax.random.key(1))
        >>> len(list(itertools.islice(tokens, 3)))
        3

        ```
    """
    _check(prompt, top_k)
    return _stream(model, prompt, key, steps, jnp.asarray(temperature, jnp.float32), top_k)


def _stream(
    model: Any,
    prompt: Array,
    key: Array,
    steps: int | None,
    temperature: Array,
    top_k: int | None,
) -> Iterator[int]:
    arrays, rest = eqx.partition(model, eqx.is_array)

    def after(arrays: Any, state: Any, tokens: Array, number: Array) -> tuple[Any, Array]:
        state, logits = eqx.combine(arrays, rest).prefill(tokens, state)
        one = jnp.where(number == 0, key, jax.random.fold_in(key, number))
        return state, _draw(logits[-1], one, temperature, top_k)

    going_on = jax.jit(after, donate_argnums=1)  # the old state makes room for the new
    state = model.init(None if steps is None else len(prompt) + steps)
    state, token = going_on(arrays, state, prompt, jnp.asarray(0))
    number = 1
    while True:
        yield int(token)
        if number == steps:
            return
        state, token = going_on(arrays, state, token[None], jnp.asarray(number))
        number += 1


def _draw(logits: Array, key: Array, temperature: Array, top_k: int | None) -> Array:
    """One token, int32."""
    logits = logits.astype(jnp.float32)
    likeliest = jnp.argmax(logits)
    if top_k is not None and top_k < len(logits):
        least = jax.lax.top_k(logits, top_k)[0][-1]
        logits = jnp.where(logits >= least, logits, -jnp.inf)
    warm = jnp.where(temperature > 0, temperature, 1)
    drawn = jax.random.categorical(key, logits / warm)
    return jnp.where(temperature > 0, drawn, likeliest).astype(jnp.int32)


def _check(prompt: Array, top_k: int | None) -> None:
    if len(prompt) == 0:
        raise SpecError("An empty prompt has nothing to go on from.", instead="at least one token.")
    if top_k is not None and top_k < 1:
        raise SpecError(f"top_k={top_k} leaves no token to draw.", instead="1 or more, or None.")
