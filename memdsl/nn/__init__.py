"""Equinox modules made from layer specs."""

from . import _build_algebra as _build_algebra  # registers how its layers are built
from ._base import AbstractModule as AbstractModule
from ._build import build as build
from ._generate import generate as generate, stream as stream
