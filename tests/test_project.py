"""What the project says of itself in its configuration holds together."""

import re
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest


ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_groups_equal_extras():
    assert PROJECT["dependency-groups"] == PROJECT["project"]["optional-dependencies"]


def test_one_version_everywhere():
    version = PROJECT["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, flags=re.MULTILINE) == [version]


def test_tests_see_double_precision():
    assert jnp.zeros(()).dtype == jnp.float64


def test_tests_refuse_silent_promotion():
    with pytest.raises(ValueError, match="promotion path"):
        jnp.zeros(2, jnp.float32) + jnp.zeros(2, jnp.float64)


def test_tests_refuse_silent_broadcasting():
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.zeros((2, 2)) + jnp.zeros(2)


@pytest.mark.usefixtures("ordinary_settings")
def test_ordinary_settings_are_those_a_person_finds():
    assert jnp.zeros(()).dtype == jnp.float32
    assert (jnp.zeros((2, 2)) + jnp.zeros(2, jnp.int32)).dtype == jnp.float32


def test_getkey_gives_new_keys_each_time(getkey):
    first, second = getkey(), getkey()
    assert (jax.random.key_data(first) != jax.random.key_data(second)).any()
