"""Client of one device: join jobs, randomize once per epoch, account for privacy, seal and send.

Apps use `Device`. `steps` computes, without input or output, the next `Document` from the current
one; `Device` stores each document before it sends anything. Clients in other languages run the same
steps and store the same document.

States of a device, per job:

* out: the device has not joined, or the user has left (`Device.leave`). It sends nothing.
* in: the device has an id and a pinned statement, the exact bytes that the operator signed.
* drawn up to epoch e, which never decreases: the device has the state of its randomizer and the
  reports that are not known to have arrived.
* gone: the server announced another deployment. The device sends nothing until the app joins again.

Events and reactions. No epoch of a deployment is drawn twice, and the loss never exceeds the app's
`Limit`:

* Late: a drawn report is sent unchanged until it is accepted (202) or finally rejected, for example
  after the epoch closed (409, late). A rejected report is dropped and never redrawn; the device
  counts as absent.
* Offline: the device draws by its own clock and stores the latest 32 waiting reports.
* Asleep: the device is absent in epochs for which the app passed no value.
* Wrong clock: the server's time replaces the device's if they differ by more than a minute. Without
  a server the device's clock is used: an early report waits until its epoch starts, and a late one
  is dropped. Epochs up to the last drawn one are not drawn again, so no second value is revealed.
* Killed at any moment: the device continues from the stored document. A draw and its charge are
  stored together or not at all. A draw that was not stored was never visible to any party, so the
  epoch is charged and drawn again.
* App updated: the stored file remains valid. A file that a later version wrote is rejected and left
  unchanged. A new signer applies to later joins. A lower limit only blocks further charges.
* Storage cleared or app reinstalled: the account is lost. The device is new, has a new id and is
  charged again. The limit holds per installation and only while the file survives. Store it where
  only the user clears it, and exclude it from backups: an old copy would draw sent epochs again.
* Two processes or tabs: they are one device. The slower one finds its step undone before any of it
  was sent, and continues from the other one's document.
* Two values for an epoch: the first counts; nothing of the second is stored.
* Asked in few epochs (`sampled_response`): on joining, the device draws the epochs in which it
  answers, and enrolls with an envelope without messages. In every epoch it sends an envelope of the
  same size, with messages only if it answers in that epoch. No report is sent before an enrollment
  is acknowledged, and the device enrolls again in each horizon. If it joins too late to answer in a
  drawn epoch, no other epoch replaces that one.
* A value for an ended epoch: it is reported for its own epoch, never for another, as long as
  reports for that epoch are accepted. Later it is lost; nothing is drawn.
* Job drained: reports are rejected for a while. Waiting ones are sent later, or dropped if late.
* Job replaced (410): waiting reports are dropped. `Device.join` requests the new statement: a new
  join and a new charge. The device never rejoins a deployment that it has left.
* Server down: the device retries after growing random pauses of at most an hour.
* Malicious server: a statement is rejected if no signer of the app signed it. It is also rejected
  if it differs from the joined statement of the same deployment, is older, or is about another job
  or population. A false time gains nothing: each horizon or epoch drawn has its own charge,
  whatever the server claimed before. If the server states a time in the future, the device is
  absent until then. If the server answers 410 for a running deployment, the waiting reports are
  lost and the device continues where it was. A report that is answered by 202 but discarded is not
  counted.
* User's account deleted: `Device.leave` deletes state, id and reports, and keeps the spent amounts.
  The device never joins this deployment again.
* Budget changed: the operator signs a new statement with another last epoch. A later revision is
  accepted if nothing else differs. A device requests it after its last epoch.
* User's event, in jobs with measures: `Device.record` stores it at once and makes no request. A
  report draws the answer of an ended epoch, and its epoch, history and draw are stored together. An
  event of an epoch that is already drawn counts in the windows of later epochs only.
* Other public attributes: they count from the next horizon on, since a device stays in its panel.
* Value out of range: it is clipped, not rejected, since a device's absence is visible.

The app's calls and the statement determine the times, kinds and sizes of a device's requests. The
value changes only the bytes of their contents.
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
