"""A device that takes part by itself: joins a job, draws once, keeps account, seals, sends.

`Device` is what an app uses. Inside, `steps` says what is to be stored and sent, without input or
output: it takes the `Document` that the device keeps, and returns the one that follows. `Device`
stores it, and only then sends what it says. A client in another language has the same steps and
keeps the same document.

What a device is in, for each job:

* out: it has not joined, or the user has left (`Device.leave`). It sends nothing.
* in: it has pinned a statement, the exact bytes that the operator signed, and has an id.
* drawn up to epoch e: it has the state of its randomizer, and the reports that are not known to
  have arrived. e only goes up.
* gone: the server says that another deployment runs. It sends nothing until the app joins again.

What happens, and what comes of it. Never is an epoch of a deployment drawn twice, and never is more
lost than the app's `Limit`:

* Late: what is drawn is sent unchanged until the server takes it (202) or says that it never will,
  because the epoch is closed (409, late) for one; then it is given up, never drawn anew. The device
  was silent at that epoch.
* Offline: it draws by its own clock and keeps what waits, 32 reports at most; the oldest is given
  up.
* Asleep: epochs at which the app said nothing are epochs at which the device is silent.
* Clock wrong: if the server's time is more than a minute away it counts for this report. Without a
  server the device's own counts: too early, the report waits until its epoch has begun; too late,
  it is given up. An epoch up to the last one drawn is not drawn: what the value was is not told.
* Killed at any moment: what was stored counts. A draw and its charge are stored at once, or neither
  is: what was not stored was seen by nobody, and is charged for and drawn again.
* App updated: the file is read as it is. A file of a later version is refused and left alone. A new
  signer is for jobs that are joined from then on. A lower limit keeps what was spent and stops what
  would exceed it.
* Storage cleared, app installed anew: the account is lost with everything else, and the device is a
  new one, with a new id, which is charged anew. That the file survives is what the limit hangs on,
  for each installation: keep it where only the user clears it, and out of backups, since an old
  copy draws epochs again that were sent.
* Two processes, two tabs: one device. Whoever is slower finds its step undone, before anything of
  it was sent, and goes on from what the other one has stored.
* The value of an epoch twice: the first one counts, of the second one nothing is kept.
* Job drained: the server refuses for a while, and what waits is sent later or is late.
* Job replaced: 410. What waits is given up; `Device.join` asks for the new statement, which is a
  new join and charged anew. A deployment that the account knows and the device is not in any more
  is never joined again.
* Server gone: it is tried again after growing pauses, an hour at most, drawn at random.
* Server lies: a statement that no signer of the app has signed is refused; so is another statement
  for the same deployment, one that is older than what was joined, and one about another job or
  population. A lie about time gains nothing:
  each horizon or epoch that is drawn has a charge of its own, whatever was said before it; told a
  time in the future, the device is silent until then. 410 for a deployment
  that runs: the reports that wait are lost, and it goes on where it was. 202 for what was thrown
  away: the server could as well not count it.
* User's account deleted: `Device.leave` forgets state, id and reports, and keeps what was spent.
  This deployment is never joined again.
* Budget changed: the operator signs anew, and says another last epoch. A later revision is believed
  where nothing else is another; a device asks for it when its last epoch is over.
* Value out of range: it is cut, not refused, since a device that is silent is seen to be.

When a device asks, what it asks and how long its requests are follow from when the app calls and
from the statement. The value changes the bytes of contents, and nothing else.
"""

from dpstream.randomizers.client.account import AccountEntry, Limit
from dpstream.randomizers.client.device import Device, Report, Sending, SpentBudget
from dpstream.randomizers.client.device_errors import (
    ClosedError,
    DeviceError,
    LimitError,
    NotJoinedError,
    StatementError,
    StoreError,
    UnreachableError,
    ValueRefusedError,
)
from dpstream.randomizers.client.store import FileStore, Store
from dpstream.randomizers.client.terms import Terms
from dpstream.randomizers.client.transport import HttpTransport, ServerResponse, Transport

__all__ = [
    "AccountEntry",
    "ClosedError",
    "Device",
    "DeviceError",
    "FileStore",
    "HttpTransport",
    "Limit",
    "LimitError",
    "NotJoinedError",
    "Report",
    "Sending",
    "ServerResponse",
    "SpentBudget",
    "StatementError",
    "Store",
    "StoreError",
    "Terms",
    "Transport",
    "UnreachableError",
    "ValueRefusedError",
]
