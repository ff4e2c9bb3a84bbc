"""Memory of the process on Linux: freed pages are kept for the next step."""

import ctypes


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Asks the C library to keep large freed blocks instead of handing them back to the system.

    A training step on a CPU frees and asks for the same large arrays again and again; by default
    glibc returns each to the system, which then has to fill new pages with zeros. The threads share
    one pool, because those of their own are always returned. It changes no result, and it lasts until
    the process ends. Call it before JAX is used, which starts the threads.

    **Returns:**

    Whether the C library took the setting; `False` where it has none, as on macOS and Windows.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    wanted = ((_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**30), (_ARENA_MAX, 1))
    return all([bool(mallopt(name, value)) for name, value in wanted])
