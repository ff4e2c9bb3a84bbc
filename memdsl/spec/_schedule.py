"""Numbers that follow a schedule over the count of writes."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import optax

from .._errors import SpecError
from ._base import code, described
from ._source import Source


SCHEDULES = (
    "constant_schedule",
    "cosine_decay_schedule",
    "cosine_onecycle_schedule",
    "exponential_decay",
    "linear_onecycle_schedule",
    "linear_schedule",
    "polynomial_schedule",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
)


class Schedule(Source):
    """A number that follows a schedule of `optax.schedules` over the count of writes.

    **Arguments:**

    - `name`: its name in `optax.schedules`.
    - `**named`: its arguments, plain numbers, as optax takes them.

    **Raises:** `SpecError` for an unknown name, and where optax does not take the arguments.

    ??? example

        ```python
        >>> import memdsl as md
        >>> rate = md.Schedule(
        ...     "linear_schedule", init_value=0.5, end_value=0.1, transition_steps=100
        ... )
        >>> rate
        Schedule("linear_schedule", end_value=0.1, init_value=0.5, transition_steps=100)
        >>> round(float(rate.function()(50)), 4)
        0.3

        ```
    """

    name: str
    arguments: tuple[tuple[str, float], ...] = ()
    positional: ClassVar[int] = 1
    time: ClassVar[bool] = True

    def __init__(self, name: str, arguments: Any = (), **named: float):
        merged = tuple(sorted({**dict(arguments), **named}.items()))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "arguments", merged)
        self.__check__()

    def __check__(self) -> None:
        if not isinstance(self.name, str) or self.name not in SCHEDULES:
            raise SpecError(
                f"Schedule knows no {described(self.name)}.",
                where=self,
                at="name",
                instead=f"one of {', '.join(SCHEDULES)}.",
            )
        for name, value in self.arguments:
            if not isinstance(value, int | float | str):
                raise SpecError(
                    f"Schedule takes plain numbers, and {name} is {described(value)}.",
                    where=self,
                    at=name,
                    why="A spec is data: it must hash, compare and save.",
                    instead="a Python number.",
                )
        try:
            inspect.signature(self.function()).bind(0)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f'Schedule("{self.name}") cannot be made: {str(error).rstrip(".")}.',
                where=self,
                instead=f"the arguments of optax.schedules.{self.name}.",
            ) from error

    def shown(self, at: str | None = None) -> list[tuple[str, str]]:
        return [("name", code(self.name)), *((k, f"{k}={code(v)}") for k, v in self.arguments)]

    def function(self) -> Callable[[Any], Any]:
        """The optax schedule: a function of the step."""
        return getattr(optax.schedules, self.name)(**dict(self.arguments))
