"""Shuffler, aggregator and publisher, sans I/O: stages take records and yield actions.

Start with `stage`, the interface of all stages, and `stage_builder`, which builds the stages of a
job. `environment` has the stages' injected clock, randomness and listeners. Drivers are in `kafka`:
Faust workers, and topics in memory.

* Closing windows: `shuffle_stage`, a `raw_stage`; `window_states` has a table of the states of a
  window, `windows` has the records received, `window_source` has the senders (`producer_source`),
  `window_decision` has the closing rules (`shuffle_decision`, `timeline`), and `decision_log` has
  the manifests. `admission` validates single records.
* Writing messages: `window_writer`, from `multisets` (`sorted_runs`, `ordered_chunks`,
  `random_order`).
* Reading released windows: `chunk_stage` (`attempts`, `partial_log`), which aggregates them with a
  `window_transform`.
* Publishing: `publish_stage`, a `single_writer`: `partial_log` and `epoch_log` read, `estimation`
  estimates, `estimate_records` and `result_documents` are written, `checkpoints` speed up restarts.
* Options, imported only by jobs that use them: sealed reports (`sealed_admission`, `opened_layers`,
  `ciphertexts_of_windows`, `added_ciphertexts`), shares (`added_shares`, `sum_stage`), both with
  `added_devices`; `instance_stage`; noise, random order and crowds (`stage_noise`,
  `crowd_deletion`); device jobs (`device_source`, `device_admission`, `device_decision`,
  `device_windows`, `tagged_contents`, `populations`).
* Queries about stages: `idle_condition`, `deleted_records`, `topic_uses`, `manifest_summaries`,
  `published_epochs`.
"""
