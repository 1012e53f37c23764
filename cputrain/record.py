"""Frozen value classes, cheaper to import than dataclasses.

The launcher runs before every script and has a budget of 60 ms. Importing dataclasses takes 20 ms
(it imports inspect, ast and dis), and each decorated class about 1 ms more, measured. Therefore
values derive from `Record`: type checkers see a frozen, keyword-only dataclass, while creating the
class takes microseconds at run time.

    class Core(Record):
        cpus: tuple[int, ...]
        '''Logical CPUs of this core.'''

        kind: str = "performance"
        '''Performance or efficiency core.'''
"""

from __future__ import annotations

__all__ = ["Generic", "Record", "plain"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Generic, Self, dataclass_transform
else:

    class Generic:
        """Base of classes with a type parameter, which only type checkers know."""

        def __class_getitem__(cls, parameter):
            return cls

    def dataclass_transform(**_options):
        """Return a decorator that does nothing: the real one is for type checkers."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """Frozen, keyword-only value with equality by fields, `replace` and `as_json`."""

    record_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields, in the order of their definition; fields of base classes first."""

    def __init_subclass__(cls) -> None:
        new_fields = (
            name
            for name, annotation in cls.__annotations__.items()
            if not str(annotation).startswith("ClassVar")
        )
        cls.record_fields = tuple(dict.fromkeys((*cls.record_fields, *new_fields)))

    def __init__(self, **values: Any) -> None:
        for name in self.record_fields:
            if name in values:
                self.__dict__[name] = values.pop(name)
            elif hasattr(type(self), name):
                self.__dict__[name] = getattr(type(self), name)
            else:
                raise TypeError(f"{type(self).__name__} needs the field {name!r}")
        if values:
            unknown = ", ".join(sorted(values))
            known = ", ".join(self.record_fields)
            raise TypeError(f"{type(self).__name__} has no field {unknown}; its fields are {known}")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Validate the fields; subclasses override it and raise on invalid values."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: its field {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.record_fields)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.record_fields)
        return f"{type(self).__name__}({fields})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; the copy is validated again."""
        return type(self)(**{**self.__dict__, **changes})

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON types: records become dicts, tuples and sets lists."""
        return {name: plain(getattr(self, name)) for name in self.record_fields}


def plain(value: Any) -> Any:
    """Convert a value to JSON types: records to dicts, tuples to lists, sets to sorted lists."""
    if isinstance(value, Record):
        return value.as_json()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    return value
