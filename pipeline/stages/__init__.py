"""Shuffler, aggregator and publisher, sans I/O: stages take records and yield actions.

Start with `stage`, the interface of all stages, and `stage_builder`, which builds the stages of a
job. Drivers are in `kafka`: Faust workers, and topics in memory.

* Closing windows: `shuffle_stage`; `window_states` has a table of the states of a window, `windows`
  the records received, `window_decision` the closing rules, and `decision_log` the manifests.
* Writing messages: `window_writer`, from `multisets`.
* Reading released windows: `chunk_stage`, which aggregates them with a `window_transform`.
* Publishing: `publish_stage`; `estimation` estimates, `estimate_records` and `result_documents` are
  written, `checkpoints` speed up restarts.
* Options, imported only by jobs that use them: sealed reports (`sealed_admission`, `opened_layers`,
  `ciphertexts_of_windows`, `added_ciphertexts`), shares (`added_shares`, `sum_stage`), parallel
  shufflers (`instance_stage`), noise (`stage_noise`, `crowd_deletion`),
  device jobs (`device_source`).
"""
