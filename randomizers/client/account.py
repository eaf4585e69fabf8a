"""A device's own account of spent privacy, over all jobs and deployments that it ever joined.

The server has an account of its own for its deployments. This account belongs to the data subject:
a device sends nothing that would exceed its app's limit, whatever a server sends.
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
    """Maximum total privacy cost of a population's jobs to a device.

    Attributes:
        epsilon, delta: Maximum totals, in units of 10^-9 and 10^-18.
    """

    epsilon: int
    delta: int

    @classmethod
    def of(cls, epsilon: float, delta: float = 0.0) -> Self:
        """Return a limit from numbers, rounded down; raises `ValueError` like `allowed`."""
        return cls(allowed(epsilon, EPSILON_DIGITS), allowed(delta, DELTA_DIGITS))

    def __str__(self) -> str:
        return losses(self.epsilon, self.delta)


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """Privacy cost of one deployment.

    Attributes:
        deployment: Deployment id in hexadecimal.
        deployed: Time of deployment by the operator, milliseconds since 1970.
        unit: "stream" (charged per horizon) or "epoch" (charged per reported epoch).
        epsilon, delta: Cost of one charge, in units of 10^-9 and 10^-18.
        charges: Number of charges; never decreases.
        last: Horizon or epoch of the last draw; -1 before the first draw. It never decreases, and
            each of its values was charged once (the first of a "stream" on joining).
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
        """Return the entry as JSON values, with losses as readable decimals."""
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
        """Parse the result of `to_json`; raise `ValueError`, `KeyError` or `TypeError`."""
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
            raise ValueError("'charges', 'last' and 'deployed' must be integers")
        names = (entry.population, entry.job, entry.deployment)
        if not all(type(name) is str for name in names):
            raise ValueError("'population', 'job' and 'deployment' must be text")
        if entry.deployed < 0:
            raise ValueError("'deployed' must not be negative")
        if entry.last < -1 or entry.charges < (entry.unit == "stream" or entry.last >= 0):
            raise ValueError("'last' must be at least -1, and 'charges' at least 1 after a draw")
        if entry.unit not in ("stream", "epoch"):
            raise ValueError(f"'unit' is {entry.unit!r}; expected 'stream' or 'epoch'")
        return entry


@dataclass(frozen=True, slots=True)
class Account:
    """Entries of all deployments that the device ever joined, in order; none is ever removed."""

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
        """Return when a job's newest joined deployment was deployed, or 0 if none was joined."""
        return max((entry.deployed for entry in self.entries if entry.job == job), default=0)

    def opened(self, statement: Statement, limit: Limit) -> Account:
        """Return the account with an entry for a deployment; a "stream" is charged for one horizon.

        This charge pays for the first horizon that is drawn, whatever time a server sends. Raises
        `LimitError` if one charge would exceed the limit.
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
                f"{'each horizon' if statement.unit == 'stream' else 'each epoch'}. For population "
                f"{statement.population}, {so_far} of the {limit} that this app allows is already "
                "spent: the device does not report"
            )

    def charged(self, statement: Statement, index: int, limit: Limit) -> Account:
        """Return the account with a charge for one draw of a horizon or epoch.

        The deployment must have an entry. The last drawn horizon of a "stream" is already paid for;
        for that one, the account is returned unchanged.

        Raises:
            LimitError: If the charge would exceed the limit.
            DeviceError: If this epoch, or a later horizon or epoch, was already drawn.
        """
        entry = self.entry(statement.deployment)
        if entry is None:
            raise DeviceError(
                "the account has no entry for the joined deployment: the device does not report"
            )
        if index == entry.last and entry.unit == "stream":
            return self
        if index <= entry.last:
            raise DeviceError(
                f"job {statement.job} already has a draw for this epoch or a later one: the device "
                "does not report"
            )
        charges = entry.charges
        # The charge on joining pays for the first horizon.
        if entry.last >= 0 or not charges:
            self.check_room(statement, limit)
            charges += 1
        more = replace(entry, charges=charges, last=index)
        return Account(tuple(more if each is entry else each for each in self.entries))


def losses(epsilon: int, delta: int) -> str:
    """Format losses in units of 10^-9 and 10^-18 as text."""
    more = f", delta {written(delta, DELTA_DIGITS)}" if delta else ""
    return f"epsilon {written(epsilon, EPSILON_DIGITS)}{more}"
