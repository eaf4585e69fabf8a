"""A device's own account of privacy spent, over all jobs and deployments it ever joined.

The server also accounts for what it deployed. This account belongs to the data subject: a device
sends nothing that would exceed its app's limit, whatever a server sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from dpstream.randomizers.client.amounts import DELTA_DIGITS, EPSILON_DIGITS, allowed, read, written
from dpstream.randomizers.client.device_errors import DeviceError, LimitError
from dpstream.randomizers.client.statements import Statement


@dataclass(frozen=True, slots=True)
class Limit:
    """Maximum total cost of a population's jobs to a device.

    Attributes:
        epsilon, delta: In units of 10^-9 and 10^-18.
    """

    epsilon: int
    delta: int

    @classmethod
    def of(cls, epsilon: float, delta: float = 0.0) -> Self:
        """Return a limit from numbers, rounded down; `ValueError` if negative or not a number."""
        return cls(allowed(epsilon, EPSILON_DIGITS), allowed(delta, DELTA_DIGITS))

    def __str__(self) -> str:
        return losses(self.epsilon, self.delta)


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """Cost of one deployment.

    Attributes:
        deployment: Id in hexadecimal.
        deployed: Time of deployment by the operator, milliseconds since 1970.
        unit: "stream", charged per horizon, or "epoch".
        epsilon, delta: Of one charge, in units of 10^-9 and 10^-18.
        charges: Number of charges; never decreases.
        last: Horizon or epoch of the last draw; -1 before the first. It never decreases, and each
            value it takes was charged once; joining a "stream" pays for the first.
    """

    population: str
    job: str
    deployment: str
    deployed: int
    unit: str
    epsilon: int
    delta: int
    charges: int = 0
    last: int = -1

    def __str__(self) -> str:
        times = f"{self.charges:,} x " if self.charges != 1 else ""
        each = losses(self.epsilon, self.delta)
        return f"job {self.job}, deployment {self.deployment[:8]}: {times}{each}"

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; losses as readable decimals."""
        return {
            "population": self.population,
            "job": self.job,
            "deployment": self.deployment,
            "deployed": self.deployed,
            "unit": self.unit,
            "epsilon": written(self.epsilon, EPSILON_DIGITS),
            "delta": written(self.delta, DELTA_DIGITS),
            "charges": self.charges,
            "last": self.last,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`; `ValueError`, `KeyError` or `TypeError` if malformed."""
        entry = cls(
            population=body["population"],
            job=body["job"],
            deployment=body["deployment"],
            deployed=body["deployed"],
            unit=body["unit"],
            epsilon=read(body["epsilon"], EPSILON_DIGITS),
            delta=read(body["delta"], DELTA_DIGITS),
            charges=body["charges"],
            last=body["last"],
        )
        if not all(type(each) is int for each in (entry.charges, entry.last, entry.deployed)):
            raise ValueError("invalid number of charges")
        names = (entry.population, entry.job, entry.deployment)
        if not all(type(name) is str for name in names) or entry.deployed < 0:
            raise ValueError("entry has no deployment")
        if entry.last < -1 or entry.charges < (entry.unit == "stream" or entry.last >= 0):
            raise ValueError("fewer charges than draws")
        if entry.unit not in ("stream", "epoch"):
            raise ValueError("charges of an unknown unit")
        return entry


@dataclass(frozen=True, slots=True)
class Account:
    """Every deployment ever joined, in order; entries are never removed."""

    entries: tuple[AccountEntry, ...] = ()

    def spent(self, population: str) -> Limit:
        """Return the total cost of a population's jobs."""
        own = [entry for entry in self.entries if entry.population == population]
        return Limit(
            sum(entry.epsilon * entry.charges for entry in own),
            sum(entry.delta * entry.charges for entry in own),
        )

    def entry(self, deployment: bytes) -> AccountEntry | None:
        """Return the entry of a deployment, or None if it was never joined."""
        name = deployment.hex()
        return next((entry for entry in self.entries if entry.deployment == name), None)

    def newest(self, job: str) -> int:
        """Return when the newest joined deployment of a job was deployed; 0 without any."""
        return max((entry.deployed for entry in self.entries if entry.job == job), default=0)

    def opened(self, statement: Statement, limit: Limit) -> Account:
        """Return the account with an entry for a deployment; a "stream" is charged for one horizon.

        It pays for the first horizon drawn, whichever that is and whatever time a server sends.

        Raises:
            LimitError: If one charge would exceed the limit.
        """
        self.check_room(statement, limit)
        entry = AccountEntry(
            statement.population,
            statement.job,
            statement.deployment.hex(),
            statement.deployed,
            statement.unit,
            statement.epsilon,
            statement.delta,
            charges=int(statement.unit == "stream"),
        )
        return Account((*self.entries, entry))

    def check_room(self, statement: Statement, limit: Limit) -> None:
        """Raise `LimitError` if one more charge would exceed the limit."""
        so_far = self.spent(statement.population)
        if (
            so_far.epsilon + statement.epsilon > limit.epsilon
            or so_far.delta + statement.delta > limit.delta
        ):
            raise LimitError(
                f"job {statement.job} costs {losses(statement.epsilon, statement.delta)} for "
                f"{'each horizon' if statement.unit == 'stream' else 'each epoch'}; of population "
                f"{statement.population}, {so_far} is already spent and the app allows {limit}: "
                "the device does not report"
            )

    def charged(self, statement: Statement, index: int, limit: Limit) -> Account:
        """Return the account with a charge for one horizon or epoch, which may then be drawn once.

        The deployment must have an entry. The last drawn horizon of a "stream" is already paid for:
        the same account is returned.

        Raises:
            LimitError: If the charge would exceed the limit.
            DeviceError: If it was drawn before, or a later one was.
        """
        entry = self.entry(statement.deployment)
        if entry is None:
            raise DeviceError(
                "the account has no entry for the joined deployment: the device does not draw"
            )
        if index == entry.last and entry.unit == "stream":
            return self
        if index <= entry.last:
            raise DeviceError(
                f"job {statement.job} was already drawn past this epoch: the device does not report"
            )
        charges = entry.charges
        # The charge for joining pays for the first one.
        if entry.last >= 0 or not charges:
            self.check_room(statement, limit)
            charges += 1
        more = replace(entry, charges=charges, last=index)
        return Account(tuple(more if each is entry else each for each in self.entries))


def losses(epsilon: int, delta: int) -> str:
    """Return losses as text for people."""
    more = f", delta {written(delta, DELTA_DIGITS)}" if delta else ""
    return f"epsilon {written(epsilon, EPSILON_DIGITS)}{more}"
