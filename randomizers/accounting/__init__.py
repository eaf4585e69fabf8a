"""Calibration and accounting: runs where a job is deployed, never on a device."""
