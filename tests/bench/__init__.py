"""What it costs, measured beside something that does the same: `python -m tests.bench`.

Machines are shared and drift by factors, so contenders take turns, ratios are taken within a round, and medians of
those ratios are what counts. Rates come with the bytes they move, so that the distance to the hardware shows.
"""
