"""Tests of memdsl.

LAPACK's threads wait for one another in a busy loop: where the machine has anything else to do, a
small Cholesky factor then takes a hundred times as long. One thread is enough for every test. This
must be said before the library is loaded.
"""

import os


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
