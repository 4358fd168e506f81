"""Replaced attributes have their former values afterwards: own ones, inherited ones, and none."""

from __future__ import annotations

import pytest

from sardonyx.base.replaced_attributes import replaced


class Parent:
    """A class with a static method, which its subclass inherits."""

    @staticmethod
    def number() -> int:
        return 1


class Child(Parent):
    """A class that inherits all."""


class Slotted:
    """A class whose objects have no dictionary."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 5


def test_an_own_attribute_stays_a_static_method() -> None:
    before = Parent.__dict__["number"]
    with replaced(Parent, "number", lambda *_: 2):
        assert Child().number() == 2
    assert Parent.__dict__["number"] is before and Child().number() == 1


@pytest.mark.parametrize("target", [Child, Child()])
def test_an_inherited_attribute_is_inherited_again(target: Child) -> None:
    with replaced(target, "number", lambda: 3):
        assert target.number() == 3
    assert target.number() == 1 and "number" not in target.__dict__


def test_an_attribute_in_a_slot_has_its_value_again() -> None:
    slotted = Slotted()
    with replaced(slotted, "number", 6):
        assert slotted.number == 6
    assert slotted.number == 5


def test_a_failure_ends_the_replacement() -> None:
    with pytest.raises(ZeroDivisionError), replaced(Parent, "number", None):
        raise ZeroDivisionError
    assert Parent.number() == 1


def test_a_new_attribute_is_gone_afterwards() -> None:
    with replaced(Child, "fresh", 4, is_new=True):
        assert Child.fresh == 4  # type: ignore[attr-defined]
    assert not hasattr(Child, "fresh")


def test_a_missing_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError), replaced(Parent, "missing", 1):
        pass
    assert not hasattr(Parent, "missing")
