"""The protocols that a job file can name: our own, and those of other packages.

Whoever adds one of our own writes its devices in `randomizers`, its estimates in `aggregators`, a
module with its entry and its forecast here, and names it below; tests/conformance says what else it
wants. Another package names its entry in its metadata, as README.md says.
"""

from __future__ import annotations

from pipeline.protocols import (
    balls_into_bins,
    bucket,
    bun,
    count_mean_sketch,
    count_min,
    erlingsson,
    fragments,
    future_rand,
    hadamard,
    hadamard_stream,
    hadamard_values,
    independent_response,
    jl_hh,
    laplace_histogram,
    ldp_sgd,
    memoized_response,
    projective_geometry,
    range_stream,
    range_values,
    shuffled_counts,
    shuffled_tree,
    single_message,
    sparse_recovery,
    split_budget,
    value_stream,
)
from pipeline.protocols.other_packages import Registry

PROTOCOLS = Registry(
    module.PROTOCOL
    for module in (
        value_stream,
        future_rand,
        hadamard_values,
        range_values,
        hadamard_stream,
        range_stream,
        projective_geometry,
        count_min,
        independent_response,
        erlingsson,
        bun,
        split_budget,
        memoized_response,
        balls_into_bins,
        hadamard,
        single_message,
        fragments,
        ldp_sgd,
        shuffled_counts,
        shuffled_tree,
        laplace_histogram,
        jl_hh,
        bucket,
        sparse_recovery,
        count_mean_sketch,
    )
)
