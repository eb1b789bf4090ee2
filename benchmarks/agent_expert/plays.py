"""The tasks of the practice set that the expert plays, by path."""

from __future__ import annotations

from benchmarks.agent_expert import filters, losses, pooling, rows
from benchmarks.agent_expert.script import Play

PLAYS: dict[str, Play] = {
    play.name: play
    for play in (
        Play("single/diagonal_from_the_right", rows.diagonal),
        Play("single/avg_pool2d_box_filter", pooling.box_filter),
        Play("single/conv3d_depthwise", filters.filter_volumes),
        Play("single/conv1d_depthwise_long_filter", filters.filter_rows),
        Play("single/conv2d_depthwise_wide_kernel", filters.filter_planes),
        Play("single/running_maximum", rows.running_maximum),
        Play("single/cross_entropy_of_pixels", losses.cross_entropy_of_pixels),
        Play("single/cumsum_long_rows", rows.cumsum),
        Play("single/max_pool3d_overlapping", pooling.max_pool3d),
        Play("single/avg_pool3d_uneven", pooling.avg_pool3d),
        Play("single/conv2d_depthwise_strided", filters.filter_planes_by_two),
        Play("single/bmm_tiny_odd", rows.small_products),
        Play("single/avg_pool1d_overlapping", pooling.avg_pool1d),
    )
}
