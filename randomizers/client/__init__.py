"""Client of one device: join jobs, randomize once per epoch, account for privacy, seal and send.

Apps use `Device`. `steps` computes what to store and send, without input or output: from the
device's `Document` to the next one, which `Device` stores before it sends. Clients in other
languages follow the same steps and store the same document.

States of a device, per job:

* out: not joined, or the user has left (`Device.leave`). Sends nothing.
* in: has an id and has pinned a statement, the exact bytes that the operator signed.
* drawn up to epoch e, which only grows: has the state of its randomizer, and the reports not known
  to have arrived.
* gone: the server announced another deployment. Sends nothing until the app joins again.

Events and reactions. No epoch of a deployment is ever drawn twice, and the loss never exceeds the
app's `Limit`:

* Late: a drawn report is sent unchanged until accepted (202) or finally rejected, for example after
  the epoch closed (409, late). It is then dropped, never drawn again; the device was absent.
* Offline: the device draws by its own clock and stores the latest 32 waiting reports.
* Asleep: the device is absent at epochs for which the app gave no value.
* Wrong clock: the server's time counts for a report if it is more than a minute away. Without a
  server the device's clock counts: an early report waits until its epoch starts, a late one is
  dropped. An epoch up to the last one drawn is not drawn, so its value is not revealed.
* Killed at any moment: the stored document counts. A draw and its charge are stored together or not
  at all. An unstored draw was never visible to any party, and is charged and drawn again.
* App updated: the file is read unchanged; a file of a later version is rejected and left alone. A
  new signer applies to later joins. A lower limit keeps spent amounts and blocks charges beyond it.
* Storage cleared or app reinstalled: the account is lost; the device is a new one, with a new id,
  and is charged again. The limit holds per installation and only while the file survives. Store it
  where only the user clears it, and exclude it from backups: an old copy draws sent epochs again.
* Two processes or tabs: one device. The slower one finds its step undone before any of it was sent,
  and continues from the other's document.
* Two values for an epoch: the first counts; nothing of the second is stored.
* Job drained: the server rejects reports for a while. Waiting ones are sent later or become late.
* Job replaced: 410. Waiting reports are dropped. `Device.join` requests the new statement, which is
  a new join and a new charge. A deployment in the account that was left is never rejoined.
* Server down: retried after growing random pauses of at most an hour.
* Malicious server: a statement is rejected if no signer of the app signed it. It is also rejected
  if it differs from the joined one for the same deployment, is older, or is about another job or
  population. A false time gains nothing: each horizon or epoch drawn has its own charge, whatever
  was claimed before. After a time in the future, the device is absent until then. After 410 for a
  running deployment, the waiting reports are lost and the device continues where it was. 202 for a
  discarded report equals not counting it.
* User's account deleted: `Device.leave` deletes state, id and reports, and keeps what was spent.
  This deployment is never joined again.
* Budget changed: the operator signs a new statement with another last epoch. A later revision is
  accepted if nothing else differs. A device requests it after its last epoch.
* Value out of range: clipped, not rejected, since a device's absence is visible.

The times, kinds and sizes of a device's requests follow from the app's calls and the statement. The
value changes the bytes of contents, and nothing else.
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
    ValueRejectedError,
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
    "ValueRejectedError",
]
