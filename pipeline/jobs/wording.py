"""Wording of a job for its readers; no computation depends on it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Group of keys: unknown keys are rejected, values are not coerced, instances are immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


PEOPLE = "users"
"""Default noun for the users of a job."""

KEYS = ("title", "description", "unit", "labels")


def _one_line(text: str) -> str:
    if text != text.strip() or not text.isprintable():
        raise ValueError("not a line of text")
    return text


def _words(most: int, about: str) -> Any:
    return Field(
        default=None,
        min_length=1,
        max_length=most,
        description=f"{about}, a line of at most {most:,} characters",
    )


Line = Annotated[str, AfterValidator(_one_line)]


class Wording(Section):
    title: Line | None = _words(100, "what is counted")
    description: Line | None = _words(1_000, "a note for readers")
    unit: Line | None = _words(40, "the name of the users in the plural, such as students")
    labels: dict[str, Line] | None = Field(
        default=None, description="{NAME: TEXT, ...}, display names of items or values"
    )

    @property
    def people(self) -> str:
        return self.unit or PEOPLE

    def reads(self, label: str) -> str:
        """Return the display text of an item or value.

        >>> Wording(labels={"1": "enrolled"}).reads("1"), Wording().reads("bus")
        ('enrolled', 'bus')
        """
        return (self.labels or {}).get(label, label)

    def given_texts(self, *names: str) -> dict[str, Any]:
        """Return those keys in `names` that the job file has, with their texts.

        >>> Wording(unit="students").given_texts("title", "unit")
        {'unit': 'students'}
        """
        return {name: wording for name in names if (wording := getattr(self, name))}

    def shown_as(self, item: str) -> dict[str, str]:
        """Return the display text of a counted item under the key "label"; empty without `labels`.

        >>> Wording(labels={"1": "enrolled"}).shown_as(""), Wording().shown_as("bus")
        ({'label': 'enrolled'}, {})
        """
        return {"label": self.reads(item or "1")} if self.labels else {}
