"""What a test goes on with, where a value could have been missing."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    assert value is not None
    return value
