"""What a run says about itself: checks, coverage, summaries."""
