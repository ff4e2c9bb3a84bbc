"""Tests of memdsl.

LAPACK's threads wait for one another in a busy loop: where the machine has anything else to do, a
small Cholesky factor then takes a hundred times as long. One thread is enough for every test.

Most of the time goes into compiling programs that run once, so LLVM is told to think less about them,
and fusions are written down the short way where there is one (half the time of compiling). The
optimisations of XLA itself, which decide what is computed in which order, stay as they are.

Each of several workers keeps to cores of its own: programs whose threads share cores wait for each
other most of the time.

What was compiled is kept in `.jax_cache`, for the other worker, for tests after caches were cleared,
and for the next run.

All of it must be said before the libraries are loaded.
"""

import os
from importlib.metadata import version
from pathlib import Path


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

_FLAGS = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS])

_WORKER, _WORKERS = (
    os.environ.get("PYTEST_XDIST_WORKER"),
    os.environ.get("PYTEST_XDIST_WORKER_COUNT"),
)
if _WORKER and _WORKERS and hasattr(os, "sched_setaffinity"):
    _CORES = sorted(os.sched_getaffinity(0))[int(_WORKER.removeprefix("gw")) :: int(_WORKERS)]
    if _CORES:
        os.sched_setaffinity(0, _CORES)
