"""Equinox modules made from layer specs."""

from ._base import AbstractModule as AbstractModule
from ._build import build as build
from ._generate import generate as generate, stream as stream
