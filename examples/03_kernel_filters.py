"""Kernel adaptive filters: predict the next value of a chaotic series, then learn it, at every step.

The sorts are those of a language model, in other combinations: no network, no training loop. Half way
through, the series changes its law, and every filter has to find its way again.

    python examples/03_kernel_filters.py [where the picture goes]
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import memdsl as md


PAST = 7  # how many values a prediction looks back on


def mackey_glass(length, delay, start=1.2):
    """x' = 0.2 x(t - delay) / (1 + x(t - delay)^10) - 0.1 x, by Euler steps of 0.5, every 12th kept."""
    lag = 2 * delay
    x = np.full(lag + 12 * length + 1, start)
    for t in range(lag, len(x) - 1):
        old = x[t - lag]
        x[t + 1] = x[t] + 0.5 * (0.2 * old / (1 + old**10) - 0.1 * x[t])
    return x[lag + 1 :: 12]


series = np.concatenate([mackey_glass(400, delay=17), mackey_glass(400, delay=23)])
windows = np.lib.stride_tricks.sliding_window_view(series, PAST + 1)
keys, values = jnp.asarray(windows[:, :PAST]), jnp.asarray(windows[:, PAST:])

# One kernel, and what is done with it: each filter changes one word of another.
rbf = md.RBF(scale=0.7)
klms = md.Memory(rbf, md.Delta(rate=0.5), capacity=md.Budget(len(keys)))
filters = {
    "linear LMS": md.Memory(md.Dot() + md.Constant(1.0), md.Delta(rate=0.1)),
    "KLMS": klms,
    # A key within 0.25 of a stored one adds to it, instead of taking a place of its own.
    "QKLMS": klms.replace(gate=md.Novelty(0.25), capacity=md.Budget(200, merge=md.AddToNearest())),
    # All coefficients fade, so that the oldest atom is worth little when it has to go. The price is a
    # bias: what fades is answered too small.
    "NORMA": klms.replace(gate=md.Decay(0.99), capacity=md.Budget(200)),
    # Not a step towards the pair, but the best fit of the latest 100.
    "sliding ridge": klms.replace(write=md.Ridge(1e-3), capacity=md.Window(100)),
}

print("squared error in dB, in the stretches before, at and after the change; lower is better\n")
figure, axes = plt.subplots(figsize=(8, 4.5))
smooth = np.ones(40) / 40
for name, memory in filters.items():
    state = md.empty(memory, PAST, 1)
    # Without queries a run forecasts: it answers at every key before it is told the value there.
    state, forecasts = md.run(memory, state, keys, values)
    error = np.asarray((forecasts - values)[:, 0]) ** 2 / series.var()
    parts = (error[300:390], error[400:450], error[700:])
    db = "".join(f"{10 * np.log10(part.mean()):8.1f}" for part in parts)
    finite = md.is_finite(memory.kernel)  # then atoms dissolve in a matrix
    kept = "a matrix" if finite else f"{jnp.sum(jnp.isfinite(state.log_weight))} atoms"
    print(f"{name:16}{db}   {kept}")
    curve = 10 * np.log10(np.convolve(error, smooth, "valid"))
    axes.plot(np.arange(len(curve)) + len(smooth), curve, label=name)

axes.axvline(400 - PAST, color="gray", linestyle=":")
axes.set(
    xlabel="step", ylabel="squared error, mean of 40 steps, in dB", title="Predict, then learn"
)
axes.legend(loc="center left")
path = Path(sys.argv[1] if len(sys.argv) > 1 else "kernel_filters.png")
figure.savefig(path, dpi=120, bbox_inches="tight")
print(f"\nthe learning curves are in {path}")
