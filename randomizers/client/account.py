"""What a device has spent of its user's privacy, over all jobs and deployments it ever joined.

The server keeps an account too, of what it deployed. This one is kept by whoever it is about: a
device that would be charged more than its app allows stays silent, whatever a server says.
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
    """The most that a population's jobs may cost a device, together.

    Attributes:
        epsilon: in 10^-9.
        delta: in 10^-18.
    """

    epsilon: int
    delta: int

    @classmethod
    def of(cls, epsilon: float, delta: float = 0.0) -> Self:
        """As numbers, rounded down; `ValueError` if one is negative or none."""
        return cls(allowed(epsilon, EPSILON_DIGITS), allowed(delta, DELTA_DIGITS))

    def __str__(self) -> str:
        return losses(self.epsilon, self.delta)


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """What one deployment has cost.

    Attributes:
        population: whose budget it was.
        job: name.
        deployment: in hexadecimal.
        deployed: when the operator deployed it, milliseconds since 1970.
        unit: "stream", charged for horizons, or "epoch".
        epsilon: of one charge, in 10^-9.
        delta: of one charge, in 10^-18.
        charges: how many; it only goes up.
        last: the horizon or epoch that the last draw was of; -1: nothing is drawn yet. It only goes
            up, and each that it takes was charged for once. The charge of joining a "stream" is for
            whichever horizon is drawn first.
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
        """JSON values; losses as decimals, which people can read."""
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
        """What `to_json` wrote; `ValueError`, `KeyError` or `TypeError` if it has not."""
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
            raise ValueError("no number of charges")
        names = (entry.population, entry.job, entry.deployment)
        if not all(type(name) is str for name in names) or entry.deployed < 0:
            raise ValueError("an entry of no deployment")
        if entry.last < -1 or entry.charges < (entry.unit == "stream" or entry.last >= 0):
            raise ValueError("fewer charges than draws")
        if entry.unit not in ("stream", "epoch"):
            raise ValueError("charges for nothing that is known")
        return entry


@dataclass(frozen=True, slots=True)
class Account:
    """Every deployment that was ever joined; none is ever taken out.

    Attributes:
        entries: in the order in which they were joined.
    """

    entries: tuple[AccountEntry, ...] = ()

    def spent(self, population: str) -> Limit:
        """What a population's jobs have cost so far."""
        own = [entry for entry in self.entries if entry.population == population]
        return Limit(
            sum(entry.epsilon * entry.charges for entry in own),
            sum(entry.delta * entry.charges for entry in own),
        )

    def entry(self, deployment: bytes) -> AccountEntry | None:
        """What a deployment has cost; None if it was never joined."""
        name = deployment.hex()
        return next((entry for entry in self.entries if entry.deployment == name), None)

    def newest(self, job: str) -> int:
        """When the newest deployment of a job that was joined was deployed; 0 if none was."""
        return max((entry.deployed for entry in self.entries if entry.job == job), default=0)

    def opened(self, statement: Statement, limit: Limit) -> Account:
        """With an entry for a deployment; a "stream" is charged for its first horizon.

        Which horizon that is does not matter, nor does what anybody says about the time: the first
        one that is drawn is the one that is paid for.

        Raises:
            LimitError: there is no room for one charge.
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
        """Raise `LimitError` unless there is room for one more charge."""
        so_far = self.spent(statement.population)
        if (
            so_far.epsilon + statement.epsilon > limit.epsilon
            or so_far.delta + statement.delta > limit.delta
        ):
            raise LimitError(
                f"job {statement.job} costs {losses(statement.epsilon, statement.delta)} for "
                f"{'each horizon' if statement.unit == 'stream' else 'each epoch'}; of population "
                f"{statement.population}, {so_far} is spent already and the app allows {limit}: "
                "the device stays silent"
            )

    def charged(self, statement: Statement, index: int, limit: Limit) -> Account:
        """With a charge for exactly one horizon or epoch, which may be drawn then, once.

        Args:
            statement: of the deployment, which has an entry.
            index: of the horizon or epoch.
            limit: the app's.

        Returns:
            itself for the horizon of a "stream" that is the last one drawn: it is paid for.

        Raises:
            LimitError: there is no room for it.
            DeviceError: it is one that was drawn before, or that a later one was drawn after.
        """
        entry = self.entry(statement.deployment)
        if entry is None:
            raise DeviceError("an account without an entry for what was joined: nothing is drawn")
        if index == entry.last and entry.unit == "stream":
            return self
        if index <= entry.last:
            raise DeviceError(
                f"job {statement.job} was drawn beyond this epoch: the device stays silent"
            )
        charges = entry.charges
        # What was charged on joining is for the first one.
        if entry.last >= 0 or not charges:
            self.check_room(statement, limit)
            charges += 1
        more = replace(entry, charges=charges, last=index)
        return Account(tuple(more if each is entry else each for each in self.entries))


def losses(epsilon: int, delta: int) -> str:
    """For people."""
    more = f", delta {written(delta, DELTA_DIGITS)}" if delta else ""
    return f"epsilon {written(epsilon, EPSILON_DIGITS)}{more}"
