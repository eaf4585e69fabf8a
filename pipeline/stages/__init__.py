"""Shuffle, aggregate, publish, sans I/O: a stage takes records and asks for actions.

Begin with `stage`, what all stages have in common, and `stage_builder`, which builds the stages of
a job; `environment` is what they are given from outside. Who drives them lies in `kafka`: Faust's
workers, and topics in memory.

* Deciding windows: `shuffle_stage`, a `raw_stage`; `window_states` has the life of a window as a
  table, `windows` what has arrived of it, `window_source` who reports (`producer_source`),
  `window_decision` when it is decided (`shuffle_decision`, `timeline`, `latest_windows`),
  `decision_log` what was decided. `admission` reads single records.
* Writing words: `window_writer`, from `multisets` (`sorted_runs`, `ordered_pieces`,
  `random_order`).
* Reading what is released: `chunk_stage` (`attempts`, `complete_partials`), which has a
  `window_transform` add it up.
* Publishing: `publish_stage`, a `single_writer`: `partial_log` and `epoch_log` read, `estimation`
  estimates, `estimate_records` and `result_documents` are written, `checkpoints` shorten starts.
* Options, imported for jobs that ask for them: sealed reports (`sealed_admission`, `opened_layers`,
  `boxes_of_windows`, `added_boxes`), shares (`added_shares`, `sum_stage`), both with
  `added_devices`; `instance_stage`; noise, random order and crowds (`stage_noise`,
  `crowd_deletion`); devices that report themselves (`device_source`, `device_admission`,
  `device_decision`, `device_windows`, `tagged_contents`, `populations`).
* What others ask of stages: `idle_condition`, `deleted_records`, `topic_uses`, `tallies`,
  `published_epochs`.
"""
