"""What a pool holds, told from torch's snapshot of all pools."""

from __future__ import annotations

from seam.cuda import pool_bytes


def test_the_segments_of_a_pool_are_summed_under_all_its_ids() -> None:
    segments = [
        {"total_size": 1, "segment_pool_id": (0, 0)},
        {"total_size": 20, "segment_pool_id": (0, 301)},
        {"total_size": 300, "segment_pool_id": [0, 302]},
        {"total_size": 4000, "segment_pool_id": (301, 0)},
        {"total_size": 50000, "segment_pool_id": (0, 301)},
    ]
    assert pool_bytes(segments, [(0, 301), (0, 302)]) == 50320
    assert pool_bytes(segments, [(0, 303)]) == 0
